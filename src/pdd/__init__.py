"""PDD: prefill / relay-decode / main-decode serving across datacenters."""

__version__ = "0.1.0"
