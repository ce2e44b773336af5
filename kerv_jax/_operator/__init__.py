"""How a kervolution is computed: options, patch statistics, sums of differences, patches."""
