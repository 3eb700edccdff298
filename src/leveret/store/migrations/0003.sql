-- Schema 3: the resource eventlog (RFC 44), one RFC 18 line a row.
CREATE TABLE resource_event(n INTEGER PRIMARY KEY, line BLOB NOT NULL);
