-- Lost attempts count neither as failures nor for ever.
ALTER TABLE piton_hook ADD COLUMN failures BIGINT NOT NULL DEFAULT 0;
ALTER TABLE piton_hook ADD COLUMN claims BIGINT NOT NULL DEFAULT 0;
UPDATE piton_hook SET failures = attempts WHERE due_at IS NOT NULL AND status = 'pending';
UPDATE piton_hook SET failures = greatest(attempts - 1, 0), claims = 1
    WHERE due_at IS NOT NULL AND status = 'processing';

DROP INDEX piton_hook_due;
CREATE INDEX piton_hook_due ON piton_hook (namespace, due_at, id) WHERE status = 'pending';
CREATE INDEX piton_hook_in_hand ON piton_hook (namespace, due_at, id) WHERE status = 'processing' AND claims < 3;
CREATE INDEX piton_hook_suspect ON piton_hook (namespace, due_at, id) WHERE status = 'processing' AND claims >= 3;
