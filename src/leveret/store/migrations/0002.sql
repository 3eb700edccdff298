-- Schema 2: purged jobs.
-- What stays of a purged job: its verdict, for dependencies that name it, and that its id is taken.
-- status: wait status of `finish` (null: none); cause: type of the first fatal exception ('' : none)
CREATE TABLE purged(
    id INTEGER PRIMARY KEY, result TEXT NOT NULL, started INTEGER NOT NULL, status INTEGER, cause TEXT NOT NULL
);

-- output files of purged jobs that are still to be unlinked: first the rows go, then the files
CREATE TABLE leftover(node INTEGER NOT NULL, file TEXT NOT NULL, PRIMARY KEY(node, file)) WITHOUT ROWID;
