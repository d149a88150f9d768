"""OpenAI's form of some calls, for methods that declare it. A mapping: no templates, no tools, no count of tokens."""
