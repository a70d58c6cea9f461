"""/v1/messages of the Anthropic API: requests read, answers written as blocks and events."""
