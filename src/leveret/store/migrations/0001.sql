-- Schema 1. A migration file is never edited once released; add 0002.sql instead.
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- what was submitted; the environment is kept once, by hash
CREATE TABLE job(id INTEGER PRIMARY KEY, userid INTEGER NOT NULL, t_submit REAL NOT NULL, env TEXT, jobspec BLOB NOT NULL);
CREATE TABLE env(hash TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;

-- a job is in `active` until `clean`; in the same transaction its final API record goes into `done`
CREATE TABLE active(id INTEGER PRIMARY KEY);
CREATE TABLE done(id INTEGER PRIMARY KEY, t_inactive REAL NOT NULL, result TEXT NOT NULL, record BLOB NOT NULL);
CREATE INDEX done_time ON done(t_inactive);

-- the primary eventlogs: `line` is the RFC 18 text, `seq` the global stream id
CREATE TABLE event(seq INTEGER PRIMARY KEY, job INTEGER NOT NULL, n INTEGER NOT NULL, line BLOB NOT NULL, UNIQUE(job, n));

-- eventlogs of the guest space: `lines` holds `count` newline-terminated RFC 18 lines, the first numbered n;
-- with extent = 1 it is {"node", "file", "start", "end"}: frames in an output file
CREATE TABLE guest(
    job INTEGER NOT NULL, path TEXT NOT NULL, n INTEGER NOT NULL,
    count INTEGER NOT NULL, extent INTEGER NOT NULL, lines BLOB NOT NULL,
    PRIMARY KEY(job, path, n)
) WITHOUT ROWID;

-- the per-job key/value space (RFC 16 names: R, guest.*), and while the job is active:
-- ask/UNIT/NODE   an ask that started processes: stored before it was sent, never repeated to another incarnation
-- hold/KIND/NAME  which plugin closes an open hold
CREATE TABLE kv(job INTEGER NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY(job, key)) WITHOUT ROWID;

-- jobs with the flag `waitable` that have ended and that nobody has waited for
CREATE TABLE waitable(id INTEGER PRIMARY KEY);

-- plugins loaded by hand, in order
CREATE TABLE plugin(name TEXT PRIMARY KEY, position INTEGER NOT NULL, source TEXT NOT NULL, conf BLOB NOT NULL) WITHOUT ROWID;

-- All frequent writes go through one view, so that a whole transaction is one statement: sqlite3 gives up the GIL
-- once for it, not once a row (see bench/README.md). `kind` selects the trigger; see store/sqlite.py for the columns.
CREATE VIEW sink AS SELECT 0 AS kind, 0 AS job, 0 AS n, '' AS key, 0.0 AS num, x'' AS value WHERE 0;
CREATE TRIGGER sink_event INSTEAD OF INSERT ON sink WHEN NEW.kind = 0 BEGIN
    INSERT INTO event(job, n, line) VALUES(NEW.job, NEW.n, NEW.value);
END;
CREATE TRIGGER sink_guest INSTEAD OF INSERT ON sink WHEN NEW.kind = 1 BEGIN
    INSERT INTO guest VALUES(NEW.job, NEW.key, NEW.n, NEW.num / 2, NEW.num % 2, NEW.value);
END;
CREATE TRIGGER sink_job INSTEAD OF INSERT ON sink WHEN NEW.kind = 2 BEGIN
    INSERT INTO job VALUES(NEW.job, NEW.n, NEW.num, NEW.key, NEW.value);
    INSERT INTO active VALUES(NEW.job);
END;
CREATE TRIGGER sink_put INSTEAD OF INSERT ON sink WHEN NEW.kind = 3 BEGIN
    INSERT OR REPLACE INTO kv VALUES(NEW.job, NEW.key, NEW.value);
END;
CREATE TRIGGER sink_delete INSTEAD OF INSERT ON sink WHEN NEW.kind = 4 BEGIN
    DELETE FROM kv WHERE job = NEW.job AND key = NEW.key;
END;
CREATE TRIGGER sink_done INSTEAD OF INSERT ON sink WHEN NEW.kind = 5 BEGIN
    INSERT INTO done VALUES(NEW.job, NEW.num, NEW.key, NEW.value);
    DELETE FROM active WHERE id = NEW.job;
    DELETE FROM kv WHERE job = NEW.job AND key >= 'ask/' AND key < 'ask0';
    DELETE FROM kv WHERE job = NEW.job AND key >= 'hold/' AND key < 'hold0';
END;
CREATE TRIGGER sink_env INSTEAD OF INSERT ON sink WHEN NEW.kind = 6 BEGIN
    INSERT OR IGNORE INTO env VALUES(NEW.key, NEW.value);
END;
