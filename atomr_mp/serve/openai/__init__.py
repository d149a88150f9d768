"""OpenAI's form of some calls, for methods that declare it.

It only maps: no templates, no tools, no count of tokens.
"""
