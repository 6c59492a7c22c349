-- Decimals. They are exact, and have as many digits after the point as their type says.

SELECT id, price, rate, fine, whole, half FROM amounts WHERE id < 20 ORDER BY id;
SELECT id, price + half, price - half FROM amounts WHERE id < 16 ORDER BY id;
SELECT id, price + price, price - price, -price FROM amounts WHERE id < 8 ORDER BY id;
SELECT id, price * half FROM amounts WHERE id < 16 ORDER BY id;
SELECT id, rate * half FROM amounts WHERE id < 16 ORDER BY id;
SELECT id, price * n, price + n, price - n FROM amounts WHERE id < 12 ORDER BY id;
SELECT id, abs(price), abs(whole) FROM amounts WHERE id < 12 ORDER BY id;
SELECT id, CAST(price AS DOUBLE) / 2 FROM amounts WHERE id < 8 ORDER BY id;
SELECT id, round(CAST(price AS DOUBLE) / CAST(half AS DOUBLE), 9) FROM amounts WHERE id < 20 AND half <> 0 ORDER BY id;

--! for d: 0 | 1 | 2
SELECT id, round(price, {d}) FROM amounts WHERE id < 16 ORDER BY id;
--! for d: 0 | 3 | 5
SELECT id, round(fine, {d}) FROM amounts WHERE id < 16 ORDER BY id;
SELECT id, round(half) FROM amounts WHERE id BETWEEN 24 AND 40 ORDER BY id;
SELECT id, CAST(floor(price) AS DECIMAL(12, 0)), CAST(ceil(price) AS DECIMAL(12, 0)) FROM amounts WHERE id < 12 ORDER BY id;
--! for of: DECIMAL(12, 4) | DECIMAL(12, 1) | DECIMAL(12, 0) | DECIMAL(38, 10)
SELECT id, CAST(price AS {of}) FROM amounts WHERE id < 12 ORDER BY id;
--! for of: DECIMAL(20, 2) | DECIMAL(18, 3) | DECIMAL(38, 6)
SELECT id, CAST(fine AS {of}) FROM amounts WHERE id < 12 ORDER BY id;
SELECT id, CAST(half AS DOUBLE) AS x, CAST(half AS REAL) AS y, CAST(half AS VARCHAR) FROM amounts WHERE id < 12 ORDER BY id;
SELECT id, CAST(CAST(half AS VARCHAR) AS DECIMAL(6, 1)) = half FROM amounts WHERE id < 6 ORDER BY id;
SELECT CAST('123.456' AS DECIMAL(10, 2)), CAST('-0.005' AS DECIMAL(10, 2)), CAST('1' AS DECIMAL(3, 2)), CAST(7 AS DECIMAL(5, 3));
--! for bad: CAST(1000 AS DECIMAL(3, 1)) | CAST('9999' AS DECIMAL(5, 2)) | CAST('1.2.3' AS DECIMAL(5, 2))
--! error
SELECT {bad};
--! error
SELECT CAST(price AS DECIMAL(3, 2)) FROM amounts;

--! for f: price > 50 | price = 0.00 | price < -99.5 | price >= 79.19 | rate > 0.5 | rate BETWEEN 0.1 AND 0.2 | fine < 0 | whole > 0 | whole = 0 | half = 2.5 | half <> -2.5 | price > half | price < rate | half <= n | rate IN (0.0613, 0.1226) | price NOT IN (1.5, 2.5)
SELECT count(*), min(id), max(id) FROM amounts WHERE {f};
SELECT id, price FROM amounts WHERE price IN (-100.00, -20.81, 17.57) ORDER BY id;
SELECT id, whole FROM amounts WHERE whole < CAST('-30000000000000000000000000000000' AS DECIMAL(38, 0)) ORDER BY id;

SELECT sum(price), sum(rate), sum(fine), sum(half) FROM amounts;
SELECT sum(whole), min(whole), max(whole) FROM amounts;
SELECT min(price), max(price), min(fine), max(fine), min(rate), max(rate) FROM amounts;
SELECT count(price), count(DISTINCT price), sum(DISTINCT half) FROM amounts;
SELECT round(CAST(avg(price) AS DOUBLE), 4), round(CAST(avg(half) AS DOUBLE), 3) FROM amounts;
SELECT CAST(avg(CAST(half AS DOUBLE)) AS DECIMAL(10, 4)) FROM amounts;
SELECT grp, sum(price), min(half), max(fine), count(rate) FROM amounts GROUP BY grp;
SELECT grp, round(CAST(avg(price) AS DOUBLE), 3) FROM amounts GROUP BY grp;
SELECT n, sum(price * half), sum(price - half) FROM amounts GROUP BY n;
SELECT sum(price * rate), sum(price * (1 - rate)), sum(price * (1 - rate) * (1 + rate)) FROM amounts;
SELECT grp, sum(whole) FROM amounts GROUP BY grp HAVING sum(whole) > 0;
SELECT grp FROM amounts GROUP BY grp HAVING sum(price) > 100 ORDER BY grp NULLS LAST;
SELECT DISTINCT half FROM amounts WHERE half BETWEEN -3 AND 3;
SELECT half, count(*) FROM amounts WHERE id % 5 = 0 GROUP BY half;
SELECT id, price FROM amounts ORDER BY price DESC NULLS LAST, id LIMIT 5;
SELECT id, price FROM amounts ORDER BY price NULLS FIRST, id LIMIT 9;
SELECT id, whole FROM amounts ORDER BY whole DESC NULLS LAST, id LIMIT 4;
SELECT count(*) FROM amounts AS one JOIN amounts AS other ON one.price = other.price;
SELECT count(*) FROM amounts AS one JOIN amounts AS other ON one.half = other.n;
SELECT id, sum(price) OVER (ORDER BY id) FROM amounts WHERE id < 20 ORDER BY id;
SELECT id, CASE WHEN price > 0 THEN price ELSE 0 END FROM amounts WHERE id < 12 ORDER BY id;
SELECT id, coalesce(price, half, CAST(0.5 AS DECIMAL(10, 2))) FROM amounts WHERE id < 12 ORDER BY id;

-- Decimals over many row groups.
SELECT sum(price), min(price), max(price) FROM numbers;
SELECT sum(price * 2), sum(price * price) FROM numbers;
SELECT round(CAST(avg(price) AS DOUBLE), 4) FROM numbers WHERE price > 0;
SELECT g, sum(price) FROM numbers GROUP BY g;
SELECT tag, sum(price), sum(price * (1 - CAST(0.05 AS DECIMAL(4, 2)))), count(*) FROM numbers WHERE day < DATE '2020-06-01' GROUP BY tag;
--! for f: price > 9999 | price < -9999.50 | price BETWEEN -0.05 AND 0.05 | price = 100.25 | price IN (0.01, 0.02, 0.03)
SELECT count(*), sum(price) FROM numbers WHERE {f};
SELECT id, price FROM numbers ORDER BY price DESC, id LIMIT 5;
SELECT id, price FROM numbers ORDER BY price, id LIMIT 5;
