-- ORDER BY with LIMIT and OFFSET. The order is total, so that there is one answer.

--! for o: k, id | k DESC, id | k, id DESC | small, k, id | small DESC, k DESC, id | g NULLS FIRST, id | g NULLS LAST, id DESC | g DESC NULLS FIRST, id | g DESC NULLS LAST, id | f NULLS FIRST, id | f NULLS LAST, id | f DESC NULLS FIRST, id | f DESC NULLS LAST, id | tag NULLS FIRST, id | tag DESC NULLS LAST, id | note NULLS FIRST, id | note DESC NULLS LAST, id DESC | price, id | price DESC, id | day, id | day DESC, id | moment DESC | flag NULLS FIRST, id | flag DESC NULLS LAST, id | seldom NULLS LAST, id | seldom DESC NULLS LAST, id | id | id DESC
SELECT id, k, small, g, f, tag FROM numbers ORDER BY {o} LIMIT 6;
--! for o: k, id | g DESC NULLS LAST, id DESC | tag NULLS LAST, k, id
--! for n: LIMIT 1 | LIMIT 3 OFFSET 2 | LIMIT 2 OFFSET 199998 | LIMIT 5 OFFSET 65534 | LIMIT 5 OFFSET 300000 | LIMIT 0
SELECT id, k FROM numbers ORDER BY {o} {n};
--! for f: k < 100 | tag = 'red' | g IS NULL | id BETWEEN 65530 AND 65540 | flag AND small > 40 | id < 0 | f > 4090
SELECT id, k, tag FROM numbers WHERE {f} ORDER BY k DESC, id LIMIT 5;
SELECT id FROM numbers ORDER BY k + small DESC, id LIMIT 5;
SELECT id, k - small AS d FROM numbers ORDER BY d, id LIMIT 5;
SELECT id FROM numbers ORDER BY abs(small), k, id LIMIT 5;
SELECT id, tag FROM numbers ORDER BY length(tag) DESC NULLS LAST, tag, id LIMIT 5;
SELECT k, id FROM numbers ORDER BY 1 DESC, 2 LIMIT 4;
SELECT note FROM numbers ORDER BY note DESC NULLS LAST LIMIT 5;
SELECT * FROM numbers ORDER BY f, id LIMIT 2;
SELECT id, price FROM numbers WHERE price < 0 ORDER BY price DESC, id LIMIT 3 OFFSET 1;
SELECT id FROM numbers ORDER BY id LIMIT 100 OFFSET 199950;
SELECT tag, count(*) AS c FROM numbers GROUP BY tag ORDER BY c DESC LIMIT 3;
SELECT g, sum(k) AS s FROM numbers GROUP BY g ORDER BY s, g LIMIT 3;
SELECT k, max(id) AS m FROM numbers GROUP BY k ORDER BY m DESC LIMIT 3;
SELECT sum(k) FROM (SELECT k FROM numbers ORDER BY k DESC, id LIMIT 1000) AS t;
SELECT sum(id), min(id), max(id) FROM (SELECT id FROM numbers ORDER BY small, k, id LIMIT 5000 OFFSET 100) AS t;
SELECT id FROM (SELECT id, k FROM numbers ORDER BY k, id LIMIT 20) AS t ORDER BY id DESC LIMIT 3;
SELECT a, t FROM nothing ORDER BY a DESC LIMIT 3;
SELECT a FROM single ORDER BY a LIMIT 3;
SELECT a FROM single ORDER BY a LIMIT 3 OFFSET 1;
SELECT name FROM customers ORDER BY city DESC NULLS LAST, segment, id DESC LIMIT 5;
SELECT id, amount FROM sales ORDER BY amount DESC, id LIMIT 5;

-- Ties. The result has no column in which rows of equal keys differ, so there is one answer.
SELECT k FROM numbers ORDER BY k LIMIT 5;
SELECT flag FROM numbers ORDER BY flag DESC NULLS LAST LIMIT 3;
SELECT g FROM numbers ORDER BY g DESC NULLS FIRST LIMIT 3;
SELECT small FROM (SELECT small FROM numbers ORDER BY small DESC LIMIT 3) AS t (small);

-- Limits without an order. Only the number of rows is compared, because any rows may be returned.
--! for n: LIMIT 0 | LIMIT 1 | LIMIT 10 | LIMIT 70000 | LIMIT 1000000 | LIMIT 10 OFFSET 199995 | LIMIT 10 OFFSET 500000 | OFFSET 199000
SELECT count(*) FROM (SELECT id FROM numbers {n}) AS t;
--! for f: k = 7 | id < 65536 | id >= 196608 | tag = 'red' AND flag
SELECT count(*) FROM (SELECT id FROM numbers WHERE {f} LIMIT 150) AS t;
SELECT count(*), min(c) FROM (SELECT tag, count(*) AS c FROM numbers GROUP BY tag LIMIT 4) AS t WHERE c > 0 AND false;
SELECT count(*) FROM (SELECT DISTINCT k FROM numbers LIMIT 50) AS t;
SELECT count(*) FROM (SELECT n.id FROM numbers AS n JOIN products AS p ON n.k = p.id LIMIT 25) AS t;
