"""The subjects of `scripts/bench`: each module measures one of every contestant."""
