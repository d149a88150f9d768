"""OpenAI's form of some calls, for methods that declare it.

It only maps: no templates, no tokens are counted, nothing is stored. `text_calls.py` makes the calls of the three forms
that answer with text; `chat.py`, `completions.py` and `responses.py` read their requests and write their answers.
`fields.py` decides about each field of a request; `parts.py` reads what methods return.
"""
