CREATE TABLE piton_secret (secret BLOB NOT NULL) STRICT;
INSERT INTO piton_secret (secret) VALUES (randomblob(32));
