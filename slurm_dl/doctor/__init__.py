"""``dlctl doctor``: is everything fit for dlschedd, and what to do where it is not.

What is to be known is read once (`gather`) into one value (`findings`); each check is a small
function of that value, and all of them stand in one list (`all_checks`).
"""
