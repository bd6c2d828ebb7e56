"""Pages, the sample file and the JSON schema that are made from the code."""
