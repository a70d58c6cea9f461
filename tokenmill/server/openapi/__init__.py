"""The server's description of itself, as an OpenAPI 3.1 document.

What a request may hold is not written down a second time: the readers of bodies are run on an example,
and what they read is what the document says. ``document`` puts it together; every other module here
describes the endpoints of one family.
"""
