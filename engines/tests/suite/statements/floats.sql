-- NaN, infinities, zeros with a sign, the smallest and the largest floating-point numbers. NaN equals itself and is the
-- largest; -0 equals 0.

SELECT id, x FROM floats ORDER BY id;
SELECT id, s FROM floats ORDER BY id;
SELECT id, -x, abs(x) FROM floats ORDER BY id;
SELECT id, x + 1, x - 1, x * 2 FROM floats ORDER BY id;
SELECT id, x + y FROM floats ORDER BY id;
SELECT id, x - y FROM floats ORDER BY id;
SELECT id, x * y FROM floats ORDER BY id;
SELECT id, x / 2.0 FROM floats ORDER BY id;
SELECT id, isnan(x) FROM floats ORDER BY id;
SELECT id, floor(x), ceil(x) FROM floats WHERE abs(x) > 0.4 AND abs(x) < 10 ORDER BY id;
SELECT id, sqrt(x) FROM floats WHERE x > 0.05 ORDER BY id;
SELECT id, round(x * 1000) FROM floats WHERE abs(x) < 1 AND abs(x) > 1e-8 ORDER BY id;

--! for op: = | <> | < | <= | > | >=
--! for v: 0.5 | -0.1 | 1e21 | CAST('NaN' AS DOUBLE) | CAST('Infinity' AS DOUBLE) | CAST('-Infinity' AS DOUBLE)
SELECT id FROM floats WHERE x {op} {v} ORDER BY id;
--! for op: = | <> | < | <= | > | >=
SELECT id FROM floats WHERE x {op} y AND x <> 0 AND y <> 0 ORDER BY id;
--! for op: = | <> | < | <= | > | >=
--! for v: 0 | 0.0 | -0.0e0 | CAST(0 AS DOUBLE)
SELECT id FROM floats WHERE x {op} {v} ORDER BY id;
--! for op: = | <> | < | <= | > | >=
SELECT id FROM floats WHERE s {op} CAST(0 AS REAL) ORDER BY id;
SELECT id FROM floats WHERE x BETWEEN 0 AND 0 ORDER BY id;
SELECT id FROM floats WHERE x IN (0, 1) ORDER BY id;
SELECT id FROM floats WHERE x NOT IN (0, 1) ORDER BY id;
SELECT id FROM floats WHERE x IN (-0.0e0, 1) ORDER BY id;
SELECT id FROM floats WHERE s IN (0, 1) ORDER BY id;
SELECT abs(x) AS v, count(*) FROM floats GROUP BY abs(x);
SELECT abs(s) AS v, count(*) FROM floats GROUP BY abs(s);
SELECT x + 0 AS v, count(*) FROM floats GROUP BY x + 0;
SELECT count(*) FROM (SELECT x FROM floats GROUP BY x) AS t;
SELECT count(*) FROM (SELECT DISTINCT x FROM floats) AS t;
SELECT count(*) FROM (SELECT DISTINCT s FROM floats) AS t;
SELECT count(DISTINCT x) FROM floats WHERE x = 0;
SELECT count(*) FROM floats AS one JOIN floats AS other ON one.x = other.x;
SELECT count(*) FROM floats AS one JOIN floats AS other ON one.x = other.y AND one.x = 0;
SELECT count(*) FROM floats WHERE x IN (SELECT y FROM floats WHERE y = 0);
SELECT id, x FROM floats ORDER BY x DESC NULLS LAST, id LIMIT 9;
SELECT id, x FROM floats WHERE x <= 0 ORDER BY x DESC, id LIMIT 3;
--! for op: = | < | >=
SELECT id FROM floats WHERE s {op} CAST(0.5 AS REAL) ORDER BY id;
--! for op: < | > | =
SELECT id FROM floats WHERE s {op} CAST('NaN' AS REAL) ORDER BY id;
SELECT id FROM floats WHERE x BETWEEN -1 AND 1 AND x <> 0 ORDER BY id;
SELECT id FROM floats WHERE x NOT BETWEEN -1 AND 1 ORDER BY id;
SELECT id FROM floats WHERE x IN (1, CAST('NaN' AS DOUBLE), CAST('Infinity' AS DOUBLE)) ORDER BY id;
SELECT id FROM floats WHERE isnan(x) OR x IS NULL ORDER BY id;
SELECT id FROM floats WHERE NOT isnan(x) AND x > 0 ORDER BY id;

SELECT id, x FROM floats WHERE x <> 0 ORDER BY x, id;
SELECT id, x FROM floats WHERE x <> 0 ORDER BY x DESC, id;
SELECT id, x FROM floats WHERE x IS NULL OR x <> 0 ORDER BY x NULLS FIRST, id LIMIT 4;
SELECT id, x FROM floats WHERE x IS NULL OR x <> 0 ORDER BY x DESC NULLS LAST, id LIMIT 4;
SELECT id, s FROM floats WHERE s <> 0 ORDER BY s DESC, id LIMIT 5;

SELECT x, count(*) FROM floats WHERE x <> 0 OR x IS NULL GROUP BY x;
SELECT s, count(*) FROM floats WHERE s <> 0 OR s IS NULL GROUP BY s;
SELECT DISTINCT x FROM floats WHERE x > 0.5;
SELECT count(DISTINCT x), count(DISTINCT s) FROM floats WHERE x <> 0;
SELECT count(*), count(x) FROM floats;
SELECT grp, count(*), min(x), max(x) FROM floats WHERE x <> 0 OR x IS NULL GROUP BY grp;
SELECT min(x), max(x), min(s), max(s) FROM floats;
SELECT min(x), max(x) FROM floats WHERE NOT isnan(x);
SELECT sum(x), avg(x) FROM floats WHERE abs(x) = 0.5 OR abs(x) = 1;
SELECT sum(x) FROM floats WHERE x = CAST('Infinity' AS DOUBLE) OR x = 1;
SELECT sum(x), avg(x) FROM floats WHERE abs(x) = CAST('Infinity' AS DOUBLE);
SELECT sum(x), avg(x) FROM floats WHERE isnan(x) OR x = 1;
SELECT sum(x), avg(x), min(x) FROM floats WHERE x IS NULL;
SELECT one.id, other.id FROM floats AS one JOIN floats AS other ON one.x = other.y WHERE one.x <> 0 ORDER BY one.id, other.id;
SELECT count(*) FROM floats WHERE x IN (SELECT y FROM floats WHERE isnan(y));
SELECT id, x, lag(x) OVER (ORDER BY id) FROM floats ORDER BY id;
SELECT id, rank() OVER (ORDER BY x NULLS LAST) FROM floats WHERE x IS NULL OR x <> 0 ORDER BY id;
SELECT CAST('NaN' AS DOUBLE) = CAST('NaN' AS DOUBLE), CAST('NaN' AS DOUBLE) > CAST('Infinity' AS DOUBLE);
SELECT CAST('1e308' AS DOUBLE) * 10, CAST('-1e308' AS DOUBLE) * 10;
SELECT id, CAST(s AS DOUBLE) FROM floats WHERE abs(s) BETWEEN 0.05 AND 2 ORDER BY id;
SELECT sum(f), avg(f), min(f), max(f) FROM numbers;
SELECT g, sum(f), avg(f), min(f), max(f) FROM numbers GROUP BY g;
SELECT round(stddev(f), 6), round(var_pop(f), 3) FROM numbers;
SELECT round(stddev_pop(f), 6), round(var_samp(f), 3) FROM numbers WHERE g = 3;
SELECT round(corr(f, small), 9), round(covar_pop(f, small), 6) FROM numbers;
SELECT round(exp(1.0), 9), round(ln(10.0), 9), round(sin(1.0), 9), round(power(2.0, 0.5), 9), round(log10(1000.0), 9), round(log2(8.0), 9);
SELECT round(pi(), 9), sqrt(2.25), round(atan2(1.0, 2.0), 9);
SELECT round(2.5e0), round(-2.5e0), round(0.125e0, 2), trunc(-1.7e0), floor(-1.2e0), ceil(-1.2e0);
