-- Schema 1. A migration file is never edited once released; add 0002.sql instead.
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- one row a job; `record` is the final API record, written in the same transaction as `clean`
CREATE TABLE job(
    id INTEGER PRIMARY KEY,
    active INTEGER NOT NULL,
    userid INTEGER NOT NULL,
    t_submit REAL NOT NULL,
    t_inactive REAL,
    result TEXT,
    env TEXT,                 -- hash in `env`; the jobspec is kept without its environment
    jobspec BLOB NOT NULL,
    R BLOB,
    record BLOB
);
CREATE INDEX job_active ON job(id) WHERE active = 1;
CREATE INDEX job_inactive ON job(t_inactive) WHERE active = 0;

CREATE TABLE env(hash TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;

-- the primary eventlogs: `line` is the RFC 18 text, `seq` the global stream id
CREATE TABLE event(seq INTEGER PRIMARY KEY, job INTEGER NOT NULL, n INTEGER NOT NULL, line BLOB NOT NULL, UNIQUE(job, n));

-- eventlogs of the guest space: `lines` holds `count` newline-terminated RFC 18 lines, the first numbered n;
-- with extent = 1 it is {"node", "file", "start", "end"}: frames in an output file
CREATE TABLE guest(
    job INTEGER NOT NULL, path TEXT NOT NULL, n INTEGER NOT NULL,
    count INTEGER NOT NULL, extent INTEGER NOT NULL, lines BLOB NOT NULL,
    PRIMARY KEY(job, path, n)
) WITHOUT ROWID;

-- the per-job key/value space (RFC 16 names: guest.*)
CREATE TABLE kv(job INTEGER NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY(job, key)) WITHOUT ROWID;

-- asks that start processes: stored before they are sent, never repeated to another incarnation
CREATE TABLE ask(
    unit TEXT NOT NULL, node INTEGER NOT NULL, job INTEGER NOT NULL, incarnation TEXT NOT NULL,
    applied INTEGER NOT NULL, state BLOB NOT NULL, spec BLOB,
    PRIMARY KEY(unit, node)
) WITHOUT ROWID;
CREATE INDEX ask_job ON ask(job);

-- who closes an open hold
CREATE TABLE hold(job INTEGER NOT NULL, key TEXT NOT NULL, plugin TEXT NOT NULL, PRIMARY KEY(job, key)) WITHOUT ROWID;

-- plugins loaded by hand, in order
CREATE TABLE plugin(name TEXT PRIMARY KEY, position INTEGER NOT NULL, source TEXT NOT NULL, conf BLOB NOT NULL) WITHOUT ROWID;
