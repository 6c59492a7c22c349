-- Arithmetic, CASE, COALESCE, casts, BETWEEN, IN and the logic between them.

SELECT 1 + 2 AS a, 3 - 5 AS b, 4 * 6 AS c, 7 % 3 AS d, -(5) AS e;
SELECT 2 + 3 * 4 AS a, (2 + 3) * 4 AS b, 10 - 4 - 3 AS c, -2 * -3 AS d;
SELECT id, a + b * 2 AS x, (a + b) * 2 AS y, a - b - 1 AS z FROM logic WHERE id < 14 ORDER BY id;
SELECT id, k % 7, small % 7, -small % 7 FROM numbers WHERE id < 8 ORDER BY id;
SELECT id, CAST(k AS DOUBLE) / 8 FROM numbers WHERE id < 8 ORDER BY id;
SELECT id, f * 2, f + k, f - 0.5e0 FROM numbers WHERE id < 8 ORDER BY id;
SELECT id, k * 1000000 FROM numbers WHERE id < 5 ORDER BY id;
SELECT id, id * id FROM numbers WHERE id > 199995 ORDER BY id;
SELECT id, abs(small), greatest(small, 0), least(small, 0) FROM numbers WHERE id < 8 ORDER BY id;
SELECT id, i32 & 255, i32 | 1 FROM kinds WHERE id BETWEEN 4 AND 12 ORDER BY id;
SELECT 5 & 3 AS a, 5 | 3 AS b, 1 << 4 AS c, 256 >> 4 AS d;
SELECT sum(k % 2), sum(CASE WHEN k % 2 = 0 THEN 1 ELSE 0 END) FROM numbers;

SELECT id, CASE WHEN small < 0 THEN 'low' WHEN small < 25 THEN 'mid' ELSE 'high' END FROM numbers WHERE id < 10 ORDER BY id;
SELECT CASE WHEN small < 0 THEN 'low' WHEN small < 25 THEN 'mid' ELSE 'high' END AS c, count(*) FROM numbers GROUP BY c;
SELECT id, CASE tag WHEN 'red' THEN 1 WHEN 'green' THEN 2 END FROM numbers WHERE id < 10 ORDER BY id;
SELECT sum(CASE WHEN flag THEN k END), sum(CASE WHEN flag THEN k ELSE -k END) FROM numbers;
SELECT id, CASE WHEN f > 0 THEN f WHEN f < 0 THEN -f END FROM numbers WHERE id < 10 ORDER BY id;
SELECT count(*) FROM numbers WHERE CASE WHEN g IS NULL THEN k > 500 ELSE k < 100 END;
SELECT id, CASE WHEN b = 0 THEN -1 ELSE 10 % b END FROM logic WHERE id < 8 ORDER BY id;
SELECT id, coalesce(g, -1), coalesce(tag, 'none'), coalesce(flag, false) FROM numbers WHERE id < 24 ORDER BY id;
SELECT sum(coalesce(g, 100)), count(coalesce(tag, note)) FROM numbers;
SELECT count(nullif(g, 3)), count(nullif(tag, 'red')) FROM numbers;
SELECT coalesce(NULL, NULL, 3) AS a, coalesce(1, 2) AS b, nullif('x', 'y') AS c, nullif('x', 'x') AS d;

--! for f: k BETWEEN 100 AND 199 | k NOT BETWEEN 100 AND 199 | k BETWEEN 199 AND 100 | f BETWEEN -1.5e0 AND 1.5e0 | tag BETWEEN 'blue' AND 'green' | k BETWEEN small AND g | k + 1 BETWEEN 10 AND 20
SELECT count(*), sum(k) FROM numbers WHERE {f};
--! for f: k IN (1, 2, 3) | k NOT IN (1, 2, 3) | k IN (1, 1, 1) | k IN (5000, 6000) | g IN (0, 16, 17) | tag IN ('red') | tag NOT IN ('red', 'blue') | k IN (10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, 130, 140, 150) | k % 10 IN (3, 7) | small IN (-50, 49) | flag IN (true) | k IN (small, g)
SELECT count(*), sum(k) FROM numbers WHERE {f};

--! for f: flag AND k > 500 | flag OR k > 990 | NOT flag | NOT (flag OR k < 900) | flag AND NOT (tag = 'red') | (flag OR g = 1) AND (k < 10 OR small > 45) | (flag AND g = 1) OR (k < 10 AND small > 45) | NOT (NOT (k = 7)) | flag = (k > 500) | flag IS NULL AND tag IS NULL | flag <> (g > 8) | (k > 5) = (small > 5)
SELECT count(*), sum(k) FROM numbers WHERE {f};
--! for f: k + small > 1000 | k * 2 < small + 30 | k - g = 500 | -k > -5 | k % 100 = small | abs(small) = 50 | f * 2 > 8000 | f + k < -4090 | k + g + small = 0 | k * k = 2500 | id % 50000 = 0 | CAST(k AS DOUBLE) > f | CAST(small AS BIGINT) = -50 | k = CAST('77' AS INTEGER) | price > k | price * 2 < k
SELECT count(*), sum(k), min(id), max(id) FROM numbers WHERE {f};

SELECT CAST(1 AS VARCHAR) || 'x' AS a, CAST('12' AS INTEGER) + 1 AS b, CAST(true AS INTEGER) AS c, CAST(0 AS BOOLEAN) AS d, CAST('1.5' AS DOUBLE) AS e;
SELECT CAST(12.0 AS INTEGER) AS a, CAST(-7.0 AS BIGINT) AS b, CAST('2020-01-01' AS DATE) AS c;
SELECT 1 = 1 AS a, 1 <> 1 AS b, 'a' < 'b' AS c, 1 = 1.0 AS d, 2 > 1.5 AS e, true > false AS f;
SELECT 1 IS NULL AS a, NULL IS NULL AS b, NULL = NULL AS c, NULL <> 1 AS d, NOT NULL AS e;
SELECT 'it''s' AS a, 'a"b' AS b, '' AS c, ' ' AS d, 'back\slash' AS e;
SELECT a AS "Quoted Name", t AS "select" FROM single;
SELECT s.* FROM single AS s;
SELECT *, a + 1 AS more FROM single;
SELECT count(*) AS c FROM single WHERE a = 42 AND t = 'only' AND missing IS NULL;
SELECT a, a AS again, t FROM single;
SELECT x.a FROM (SELECT a + 1 AS a FROM single) AS x;
SELECT 1 AS one WHERE true;
SELECT 1 AS one WHERE false;
--! for bad: 1 % 0 | sum(k) % 0
--! error
SELECT {bad} FROM numbers;
--! error
SELECT k % (k - k) FROM numbers;
--! error
SELECT 1 +;
--! error
SELEC 1;
--! error
SELECT no_such_function(1);
--! error
SELECT a FROM single GROUP BY t;
--! error
SELECT sum(sum(a)) FROM single;
--! error
SELECT a FROM single WHERE sum(a) > 1;
--! error
SELECT one.a FROM single;
--! error
SELECT id FROM customers, products;
