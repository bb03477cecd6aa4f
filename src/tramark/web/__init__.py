"""The auditor's desk: a page on this machine on which suspects are traced, for whoever holds the vault."""
