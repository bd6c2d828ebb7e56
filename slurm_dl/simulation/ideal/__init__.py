"""The papers' ideal cluster: what the policy wants is so at once."""
