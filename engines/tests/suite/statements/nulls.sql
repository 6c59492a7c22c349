-- NULL, and logic with three values.

SELECT p, q, p AND q FROM logic WHERE id < 9 ORDER BY id;
SELECT p, q, p OR q FROM logic WHERE id < 9 ORDER BY id;
SELECT p, NOT p FROM logic WHERE id % 3 = 0 AND id < 9 ORDER BY id;
SELECT p, q, p = q, p <> q FROM logic WHERE id < 9 ORDER BY id;
SELECT p, q, p IS DISTINCT FROM q, p IS NOT DISTINCT FROM q FROM logic WHERE id < 9 ORDER BY id;
SELECT id, p IS NULL, p IS NOT NULL, p IS TRUE, p IS NOT TRUE, p IS FALSE, p IS NOT FALSE, p IS UNKNOWN FROM logic WHERE id < 9 ORDER BY id;

--! for f: p AND q | p OR q | NOT (p AND q) | NOT (p OR q) | p = q | p <> q | NOT p | NOT (p = q) | (p AND q) IS NULL | (p OR q) IS NULL | p AND NOT q | p OR NOT q | (NOT p) OR q
SELECT count(*) FROM logic WHERE {f};

--! for op: = | <> | < | <= | > | >=
SELECT id, a, b, a {op} b FROM logic ORDER BY id;
--! for op: = | <> | < | <= | > | >=
SELECT count(*) FROM logic WHERE a {op} b;
--! for op: = | <> | < | <= | > | >=
SELECT count(*) FROM logic WHERE NOT (a {op} b);
--! for op: = | <>
SELECT count(*) FROM logic WHERE a {op} NULL;
--! for op: + | - | *
SELECT id, a {op} b FROM logic WHERE a IS NULL OR b IS NULL OR a = 2 ORDER BY id;

SELECT count(*) FROM logic WHERE a IS NULL AND b IS NULL;
SELECT count(*) FROM logic WHERE a IS NULL OR b IS NULL;
SELECT count(*) FROM logic WHERE a IS NOT DISTINCT FROM b;
SELECT count(*) FROM logic WHERE a IS DISTINCT FROM b;
SELECT count(*) FROM logic WHERE a IS DISTINCT FROM NULL;
SELECT count(*) FROM logic WHERE never IS NULL;
SELECT count(*) FROM logic WHERE never IS NOT NULL;
SELECT count(*) FROM logic WHERE never = never;
SELECT count(*) FROM logic WHERE never > 0 OR a = 1;
SELECT count(*) FROM logic WHERE never > 0 AND a = 1;

-- IN with NULLs.
SELECT id, a IN (0, 1) FROM logic WHERE b = 0 ORDER BY id;
SELECT id, a IN (0, NULL) FROM logic WHERE b = 0 ORDER BY id;
SELECT id, a NOT IN (0, 1) FROM logic WHERE b = 0 ORDER BY id;
SELECT id, a NOT IN (0, NULL) FROM logic WHERE b = 0 ORDER BY id;
SELECT count(*) FROM logic WHERE a IN (0, NULL);
SELECT count(*) FROM logic WHERE a NOT IN (0, NULL);
SELECT count(*) FROM logic WHERE NOT (a IN (0, 1));
SELECT count(*) FROM logic WHERE a IN (b, 1);
SELECT count(*) FROM logic WHERE (a IN (0, NULL)) IS NULL;

-- BETWEEN.
SELECT id, a BETWEEN 0 AND b FROM logic ORDER BY id;
SELECT count(*) FROM logic WHERE a NOT BETWEEN 1 AND b;
SELECT count(*) FROM logic WHERE a BETWEEN NULL AND 1;

-- Functions that meet NULL.
SELECT id, coalesce(a, b, -1) FROM logic WHERE id > 20 ORDER BY id;
SELECT id, nullif(a, b) FROM logic WHERE id < 20 ORDER BY id;
SELECT id, CASE WHEN a > b THEN 'more' WHEN a <= b THEN 'not more' ELSE 'unknown' END FROM logic ORDER BY id;
SELECT id, CASE a WHEN 0 THEN 'none' WHEN b THEN 'same' END FROM logic ORDER BY id;
SELECT id, CASE WHEN p THEN 1 WHEN NOT p THEN 2 END FROM logic WHERE id < 9 ORDER BY id;
SELECT coalesce(NULL, 7), nullif(1, 1), nullif(1, 2), coalesce(never, 5) FROM logic WHERE id = 0;
SELECT id, abs(never), never + 1, -never, upper(CAST(never AS VARCHAR)) FROM logic WHERE id < 2 ORDER BY id;
SELECT id, 'x' || t FROM texts WHERE t IS NULL ORDER BY id;
SELECT id, concat('<', t, '>') FROM texts WHERE t IS NULL OR id < 3 ORDER BY id;
SELECT greatest(1, NULL, 3), least(2, NULL), greatest(a, b), least(a, b) FROM logic WHERE id IN (2, 3, 30, 35) ORDER BY id;

-- Aggregates that meet NULL.
SELECT count(*), count(a), count(never), sum(a), sum(never), min(never), max(never), avg(a), avg(never) FROM logic;
SELECT a, count(*), count(b), sum(b), min(b), max(b), avg(b) FROM logic GROUP BY a;
SELECT p, q, count(*), sum(a) FROM logic GROUP BY p, q;
SELECT never, count(*), sum(a) FROM logic GROUP BY never;
SELECT count(DISTINCT a), count(DISTINCT never), sum(DISTINCT a) FROM logic;
SELECT bool_and(p), bool_or(p), bool_and(p) FILTER (WHERE q) FROM logic;
SELECT a, bool_and(p), bool_or(q) FROM logic WHERE id % 3 <> 0 GROUP BY a;
SELECT count(*) FILTER (WHERE p), count(*) FILTER (WHERE NOT p), count(*) FILTER (WHERE p IS NULL) FROM logic;
SELECT a FROM logic GROUP BY a HAVING sum(b) > 5;
SELECT a FROM logic GROUP BY a HAVING count(never) = 0;
SELECT a FROM logic GROUP BY a HAVING sum(never) > 0;
SELECT a FROM logic GROUP BY a HAVING sum(never) IS NULL;

-- Order of NULL among other values.
SELECT DISTINCT a FROM logic ORDER BY a NULLS FIRST;
SELECT DISTINCT a FROM logic ORDER BY a NULLS LAST;
SELECT DISTINCT a FROM logic ORDER BY a DESC NULLS FIRST;
SELECT DISTINCT a FROM logic ORDER BY a DESC NULLS LAST;
SELECT DISTINCT a, b FROM logic ORDER BY a DESC NULLS LAST, b NULLS FIRST;
SELECT DISTINCT p, a FROM logic;
SELECT DISTINCT never FROM logic;
SELECT id, a FROM logic ORDER BY a NULLS FIRST, id DESC LIMIT 3;
SELECT id, never FROM logic ORDER BY never, id LIMIT 3;
