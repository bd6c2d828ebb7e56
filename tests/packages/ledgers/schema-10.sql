BEGIN TRANSACTION;
CREATE TABLE book (kind TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE breaker (
    name TEXT PRIMARY KEY, tripped_s REAL NOT NULL, why TEXT NOT NULL, jobs TEXT NOT NULL,
    reset_s REAL NOT NULL, reset_by TEXT NOT NULL, counts_from INTEGER NOT NULL
, rearm_s REAL NOT NULL DEFAULT 0) WITHOUT ROWID;
INSERT INTO "breaker" VALUES('gpus_per_hour',1790004100.0,'12 of 10 GPUs','',1790004200.0,'user root (0)',7,0.0);
CREATE TABLE ending (
    job_id INTEGER PRIMARY KEY, label TEXT NOT NULL, name TEXT NOT NULL, user TEXT NOT NULL,
    account TEXT NOT NULL, qos TEXT NOT NULL, reason TEXT NOT NULL, nodes TEXT NOT NULL,
    ending TEXT NOT NULL, uid INTEGER NOT NULL, partition TEXT NOT NULL, state TEXT NOT NULL,
    tasks INTEGER NOT NULL, n_nodes INTEGER NOT NULL, gpus REAL NOT NULL,
    restarts INTEGER NOT NULL, start_s REAL NOT NULL, end_s REAL NOT NULL, seen_s REAL NOT NULL,
    preemptible INTEGER NOT NULL
);
CREATE TABLE handover (
    handover_id INTEGER PRIMARY KEY, body TEXT NOT NULL, closed TEXT NOT NULL
);
INSERT INTO "handover" VALUES(6,'{"handover_id": 6, "opened_s": 1790003980.0, "beneficiaries": [902], "victims": [{"run": {"job_id": 901, "start_s": 1790000100.0, "restarts": 1}, "gpus": 4.0, "contract": {"signal": "USR1", "target": "batch", "grace_s": 120.0, "requeued_by": "daemon"}, "state": "gone", "signalled_s": 1790003990.0, "gone_s": 1790004000.0, "outcome": ""}], "nodes": ["n1"], "attached": [], "seal": "released", "purpose": "preempt", "seats": [], "apart": []}','served');
INSERT INTO "handover" VALUES(7,'{"handover_id": 7, "opened_s": 1790007180.0, "beneficiaries": [902], "victims": [{"run": {"job_id": 901, "start_s": 1790005000.0, "restarts": 2}, "gpus": 4.0, "contract": {"signal": "USR1", "target": "batch", "grace_s": 120.0, "requeued_by": "daemon"}, "state": "signalled", "signalled_s": 1790007190.0, "gone_s": 0.0, "outcome": ""}], "nodes": ["n1"], "attached": [], "seal": "standing", "purpose": "preempt", "seats": [], "apart": []}','');
CREATE TABLE job (
    job_id INTEGER NOT NULL, first_submit_s REAL NOT NULL, restarts INTEGER NOT NULL, run_start_s REAL NOT NULL, counted_to_s REAL NOT NULL, run_gpus REAL NOT NULL, run_gpu_s REAL NOT NULL, attained_gpu_s REAL NOT NULL, ran_s REAL NOT NULL, forgiven_gpu_s REAL NOT NULL, forgiven_ran_s REAL NOT NULL, first_run_s REAL NOT NULL, waiting_since_s REAL NOT NULL, preemptions INTEGER NOT NULL, last_preempted_s REAL NOT NULL, fruitless INTEGER NOT NULL, last_fruitless_s REAL NOT NULL, site_factor INTEGER NOT NULL, last_seen_s REAL NOT NULL, over INTEGER NOT NULL, incomplete INTEGER NOT NULL, last_answer INTEGER NOT NULL DEFAULT 0, queued_s REAL NOT NULL DEFAULT 0, run_terms INTEGER NOT NULL DEFAULT 0, run_grace_s REAL NOT NULL DEFAULT 0, run_until REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id)
) WITHOUT ROWID;
INSERT INTO "job" VALUES(901,1790000000.0,2,1790005000.0,1790007200.0,4.0,8800.0,23456.5,5864.125,0.0,0.0,1790000100.0,0.0,1,1790004000.0,0,0.0,0,1790007200.0,0,0,0,1790000000.0,0,0.0,0.0);
INSERT INTO "job" VALUES(902,1790000060.0,0,0.0,1790007200.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,1790000060.0,0,0.0,0,0.0,0,1790007200.0,0,0,0,1790000060.0,0,0.0,0.0);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('cluster','deb');
CREATE TABLE restart (
    job_id INTEGER NOT NULL, restarts INTEGER NOT NULL, gpus REAL NOT NULL,
    requeued_s REAL NOT NULL, handover_id INTEGER NOT NULL, restarted_s REAL NOT NULL,
    fate TEXT NOT NULL, settled_s REAL NOT NULL, uid INTEGER NOT NULL DEFAULT -1,
    PRIMARY KEY (job_id, restarts)
) WITHOUT ROWID;
INSERT INTO "restart" VALUES(901,1,4.0,1790004000.0,6,1790005000.0,'well',1790006000.0,-1);
CREATE TABLE run (
    job_id INTEGER NOT NULL, start_s REAL NOT NULL, end_s REAL NOT NULL, gpu_s REAL NOT NULL,
    PRIMARY KEY (job_id, start_s)
) WITHOUT ROWID;
INSERT INTO "run" VALUES(901,1790000100.0,1790004000.0,15600.0);
CREATE TABLE steer (
    job_id INTEGER PRIMARY KEY, kind TEXT NOT NULL, avoid TEXT NOT NULL, own TEXT NOT NULL,
    "left" TEXT NOT NULL, since_s REAL NOT NULL, until_s REAL NOT NULL, not_before_s REAL NOT NULL,
    why TEXT NOT NULL, expected_start_s REAL
);
INSERT INTO "steer" VALUES(902,'wait','n2','','',1790007000.0,1790009000.0,0.0,'so that a gang fits',NULL);
CREATE TABLE taken (
    at_s REAL NOT NULL, job_id INTEGER NOT NULL, gpus REAL NOT NULL, notice_s REAL NOT NULL,
    handover_id INTEGER NOT NULL
);
INSERT INTO "taken" VALUES(1790004000.0,901,4.0,10.0,6);
CREATE INDEX taken_of ON taken (job_id, at_s);
CREATE INDEX taken_at ON taken (at_s);
CREATE INDEX taken_for ON taken (handover_id);
CREATE INDEX run_ended ON run (end_s);
CREATE INDEX ending_named ON ending (label);
CREATE INDEX ending_seen ON ending (seen_s);
CREATE INDEX ending_of_uid ON ending (uid, seen_s);
CREATE INDEX ending_of_user ON ending (user, seen_s);
COMMIT;
PRAGMA user_version=10;
