"""The same driver and policies on a virtual clock."""
