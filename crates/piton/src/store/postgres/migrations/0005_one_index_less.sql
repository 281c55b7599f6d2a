-- A list of all statuses merges theirs.
DROP INDEX piton_instance_by_workflow;
