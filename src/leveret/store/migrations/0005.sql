-- Schema 5: nodes that are in housekeeping, until they go back to the scheduler (manager/housekeeping.py).
CREATE TABLE housekeeping(job INTEGER NOT NULL, node INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY(job, node)) WITHOUT ROWID;
