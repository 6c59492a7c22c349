-- Filters over four row groups: on one column or several, at the edges of row groups, and filters that no or every row
-- passes.

--! for op: = | <> | < | <= | > | >=
--! for v: 0 | 499 | 999 | 1000 | -1
SELECT count(*), min(id), max(id), sum(k) FROM numbers WHERE k {op} {v};
--! for v: 0 | 1 | 65535 | 65536 | 65537 | 131071 | 131072 | 196607 | 196608 | 199999 | 200000
SELECT count(*), min(id), max(id), sum(small) FROM numbers WHERE id >= {v};
--! for v: 0 | 1 | 65535 | 65536 | 65537 | 131072 | 196608 | 199999 | 200000
SELECT count(*), min(id), max(id), sum(small) FROM numbers WHERE id < {v};
--! for v: 65535 | 65536 | 131072 | 196607 | 199999
SELECT id, k, g, small, f, price, day, moment, flag, tag, note FROM numbers WHERE id = {v};
SELECT id, k FROM numbers WHERE id BETWEEN 65533 AND 65538 ORDER BY id;
SELECT id, k FROM numbers WHERE id BETWEEN 131070 AND 131073 OR id BETWEEN 196606 AND 196609 ORDER BY id;
SELECT id FROM numbers WHERE id IN (0, 65535, 65536, 131071, 131072, 196607, 196608, 199999, 200000) ORDER BY id;

-- Nothing passes.
--! for f: id < 0 | id > 200000 | k > 999 AND k < 0 | k = 7 AND k = 8 | tag = 'plaid' | f > 1000000 | flag AND NOT flag | false | 1 = 2 | id <> id | seldom < 0 | price > 99999 | day < DATE '1990-01-01'
SELECT count(*), sum(k), min(tag), max(f) FROM numbers WHERE {f};
--! for f: id < 0 | false | k = 7 AND k = 8 | tag = 'plaid'
SELECT id, tag FROM numbers WHERE {f} ORDER BY id;

-- Everything passes.
--! for f: id >= 0 | id < 200000 | k BETWEEN 0 AND 999 | true | 1 = 1 | id = id | k >= 0 OR k < 0 | day > DATE '1990-01-01' | small BETWEEN -50 AND 49
SELECT count(*), sum(k), min(tag), max(f) FROM numbers WHERE {f};

-- Conjunctions and disjunctions.
--! for f: k < 100 AND small > 0 | k < 100 AND small > 0 AND flag | k < 100 AND tag = 'red' AND g = 3 | id > 60000 AND id < 70000 AND k < 500 | id < 65536 AND k = 5 | k < 10 OR k > 990 | k = 1 OR k = 2 OR k = 3 OR k = 500 | k < 10 OR small = 49 OR g = 16 | (k < 500 AND small < 0) OR (k >= 500 AND small >= 0) | (id < 1000 OR id > 199000) AND flag | NOT (k < 500) AND NOT (small < 0) | NOT (k < 500 OR small < 0) | k < 500 AND (tag = 'red' OR tag = 'blue') AND (g = 1 OR g = 2) | k > 100 AND k < 200 AND k <> 150 AND k <> 160 | id % 2 = 0 AND id % 3 = 0 AND id % 5 = 0 | k < small | f > k OR f IS NULL | tag = 'red' AND note LIKE '%5' AND price > 0
SELECT count(*), sum(id), sum(k), count(f) FROM numbers WHERE {f};

-- NULLs in columns.
--! for f: g IS NULL | g IS NOT NULL | f IS NULL | tag IS NULL | note IS NULL | flag IS NULL | flag IS NOT NULL AND tag IS NULL | g IS NULL OR f IS NULL | g IS NULL AND f IS NULL | g > 5 OR g IS NULL | NOT (g > 5) | g <> 5 | g IS NOT NULL AND g <> 5 | seldom IS NOT NULL | seldom > 100000 | seldom IS NULL AND id < 100 | k IS NULL | note IS NULL AND tag IS NULL AND flag
SELECT count(*), count(g), count(tag), sum(k) FROM numbers WHERE {f};
SELECT id, seldom FROM numbers WHERE seldom IS NOT NULL ORDER BY id;

-- Floating-point numbers, texts, booleans.
--! for f: f = 0 | f = -0.125e0 | f > 4095 | f < -4095.5e0 | f BETWEEN -0.5e0 AND 0.5e0 | f <> 0 | abs(f) < 1 | f * 8 = 100
SELECT count(*), sum(f), min(id), max(id) FROM numbers WHERE {f};
--! for f: tag < 'c' | tag > 'red' | tag <= 'cyan' | tag = 'red' OR tag = 'white' | tag LIKE 'b%' | tag LIKE '%l%' | tag NOT LIKE '%e%' | tag LIKE '____' | note LIKE 'note 00000%' | note LIKE '%99' | note >= 'note 4' | note < 'note 0000100000' | length(tag) = 5 | upper(tag) = 'RED' | tag || note LIKE 'red%1' | substr(note, 6, 3) = '001'
SELECT count(*), sum(k), min(id), max(id) FROM numbers WHERE {f};
--! for f: flag | NOT flag | flag IS TRUE | flag IS NOT TRUE | flag IS FALSE | flag = false
SELECT count(*), sum(k), min(id) FROM numbers WHERE {f};

-- Scans of few columns, of many and of none.
SELECT count(*) FROM numbers;
SELECT count(*) FROM numbers WHERE tag = 'red' AND k < 500;
SELECT count(1), count(id), count(seldom) FROM numbers;
SELECT max(id) FROM numbers WHERE price > 0 AND f > 0 AND small > 0 AND g > 0 AND k > 0 AND flag AND tag > 'a' AND note > 'a';
SELECT * FROM numbers WHERE id = 123456;
SELECT * FROM numbers WHERE k = 500 AND g = 5 AND small = 0 ORDER BY id LIMIT 3;
SELECT id + 1 AS next, k - small AS d, upper(tag) AS loud FROM numbers WHERE id BETWEEN 99998 AND 100002 ORDER BY next;
SELECT 'x' AS constant, count(*) FROM numbers WHERE g = 2;
SELECT 1 AS one FROM numbers WHERE id < 3;

-- Filters over derived tables. An engine can push them down into the derived table.
SELECT count(*), sum(s) FROM (SELECT id, k + small AS s FROM numbers WHERE k > 500) AS t WHERE s > 1000;
SELECT count(*) FROM (SELECT id, k FROM numbers WHERE k > 500) AS t WHERE k < 510 AND id > 100000;
SELECT t, c FROM (SELECT tag AS t, count(*) AS c FROM numbers GROUP BY tag) AS x WHERE c > 20000;
SELECT t, c FROM (SELECT tag AS t, count(*) AS c FROM numbers GROUP BY tag) AS x WHERE t = 'red';
SELECT count(*) FROM (SELECT DISTINCT k, g FROM numbers) AS t WHERE g = 1 AND k < 100;
SELECT count(*), sum(id) FROM (SELECT id FROM numbers ORDER BY id DESC LIMIT 1000) AS t WHERE id % 2 = 0;
SELECT count(*) FROM (SELECT id, row_number() OVER (ORDER BY id) AS r FROM numbers WHERE g = 7) AS t WHERE r <= 100 AND id > 500;

-- Tables without rows and with one.
--! for f: true | a > 0 | t = 'x' | a IS NULL | x > 1 AND d < 2
SELECT count(*), sum(a), min(t), max(x), sum(d) FROM nothing WHERE {f};
SELECT * FROM nothing;
SELECT a, t FROM nothing WHERE a > 5 ORDER BY a LIMIT 3;
SELECT * FROM single WHERE a = 42;
SELECT * FROM single WHERE a = 43;
SELECT * FROM single WHERE missing IS NULL;
