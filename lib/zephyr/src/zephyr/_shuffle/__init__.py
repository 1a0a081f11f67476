"""Moving items between shards through files that only one attempt ever writes."""
