"""/v1/responses of the OpenAI API: requests read, answers written as items and events, answers kept."""
