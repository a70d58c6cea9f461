"""Calls of tools, as families of models write them: read from answers, and enforced by grammars."""
