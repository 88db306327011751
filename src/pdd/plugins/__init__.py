"""What makes other people's engines PDD engines, each loaded by that engine through its own plug-in interface."""
