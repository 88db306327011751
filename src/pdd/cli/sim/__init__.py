"""``pdd sim``: the very driver, policies and index of the live system, on a virtual clock."""
