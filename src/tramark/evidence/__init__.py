"""What can be checked without torch: statistics, hash trees, commitments and evidence bundles."""
