"""workers.background.pipelines."""
