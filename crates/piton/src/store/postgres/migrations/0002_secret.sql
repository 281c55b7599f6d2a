CREATE TABLE piton_secret (secret BYTEA NOT NULL);
INSERT INTO piton_secret (secret)
VALUES (decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'));
