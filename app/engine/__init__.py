"""The one door between protocols and devices."""
