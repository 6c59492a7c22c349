-- UNION with and without ALL, INTERSECT, EXCEPT, and common table expressions.

SELECT a FROM logic UNION SELECT b FROM logic;
SELECT count(*) FROM (SELECT a FROM logic UNION ALL SELECT b FROM logic) AS t;
SELECT a FROM logic INTERSECT SELECT b FROM logic;
SELECT a FROM logic EXCEPT SELECT b FROM logic WHERE b > 0;
SELECT a FROM logic EXCEPT SELECT b FROM logic WHERE b IS NULL;
SELECT a, b FROM logic WHERE id < 12 INTERSECT SELECT b, a FROM logic;
SELECT id FROM products WHERE id < 6 EXCEPT SELECT product FROM sales WHERE id < 10;
SELECT id FROM products INTERSECT SELECT a FROM single;
SELECT id FROM products WHERE id < 4 UNION ALL SELECT a FROM nothing;
SELECT id FROM products WHERE id < 4 EXCEPT SELECT a FROM nothing;
SELECT id FROM products WHERE id < 4 INTERSECT SELECT a FROM nothing;
SELECT g FROM numbers WHERE k = 3 UNION SELECT a FROM logic;
SELECT tag FROM numbers WHERE flag EXCEPT SELECT tag FROM numbers WHERE id < 3;
SELECT tag FROM numbers INTERSECT SELECT tag FROM numbers WHERE k = 5 AND g = 5;
SELECT count(*) FROM (SELECT k FROM numbers WHERE flag INTERSECT SELECT k FROM numbers WHERE g = 1) AS t;
SELECT count(*) FROM (SELECT k, g FROM numbers EXCEPT SELECT k, g FROM numbers WHERE small > 0) AS t;
SELECT count(*), sum(k) FROM (SELECT k FROM numbers WHERE id < 70000 UNION ALL SELECT k FROM numbers WHERE id >= 70000) AS t;
SELECT count(*), sum(k) FROM (SELECT k FROM numbers WHERE id < 70000 UNION SELECT k FROM numbers WHERE id >= 70000) AS t;
SELECT a, count(*) FROM (SELECT a FROM logic UNION ALL SELECT b FROM logic UNION ALL SELECT never FROM logic) AS t GROUP BY a;
SELECT id, 'p' AS what FROM products WHERE id < 3 UNION ALL SELECT id, 'c' FROM customers WHERE id < 3 ORDER BY what, id;
SELECT id FROM products WHERE id < 3 UNION SELECT id FROM customers WHERE id < 5 ORDER BY id DESC LIMIT 3;
SELECT CAST(1 AS BIGINT) AS x UNION ALL SELECT 2 UNION ALL SELECT NULL ORDER BY x;
SELECT 1 AS x UNION SELECT 1 UNION SELECT 2;
SELECT price FROM products WHERE id < 3 UNION ALL SELECT amount FROM sales WHERE id < 3;
--! error
SELECT id, name FROM products UNION SELECT id FROM customers;

WITH big AS (SELECT id, amount FROM sales WHERE amount > 2400) SELECT count(*), sum(amount), min(id) FROM big;
WITH t (x, y) AS (SELECT id, k FROM numbers WHERE id < 5) SELECT y, x FROM t ORDER BY x;
WITH a AS (SELECT k, count(*) AS c FROM numbers GROUP BY k), b AS (SELECT max(c) AS m FROM a) SELECT a.k, a.c FROM a, b WHERE a.c = b.m ORDER BY a.k LIMIT 5;
WITH a AS (SELECT g, sum(k) AS s FROM numbers GROUP BY g) SELECT one.g, other.g FROM a AS one JOIN a AS other ON one.s < other.s AND one.g = other.g + 1 ORDER BY one.g;
WITH r AS (SELECT customer, sum(amount) AS s FROM sales GROUP BY customer) SELECT customer, s FROM r WHERE s = (SELECT max(s) FROM r);
WITH RECURSIVE up (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM up WHERE n < 10) SELECT count(*), sum(n) FROM up;
WITH RECURSIVE chain (id, parent, depth) AS (SELECT id, parent, 0 FROM customers WHERE id = 499 UNION ALL SELECT c.id, c.parent, chain.depth + 1 FROM customers AS c JOIN chain ON c.id = chain.parent) SELECT id, parent, depth FROM chain ORDER BY depth;
WITH a AS (SELECT 1 AS x) SELECT x FROM a UNION ALL SELECT x + 1 FROM a;
WITH k AS (SELECT id FROM products WHERE category = 'toy') SELECT count(*) FROM numbers WHERE k IN (SELECT id FROM k);
SELECT count(*), sum(x) FROM (VALUES (1), (2), (NULL), (4)) AS v (x);
SELECT x, y FROM (VALUES (1, 'a'), (2, 'b')) AS v (x, y) ORDER BY x DESC;
SELECT n.id, v.name FROM numbers AS n JOIN (VALUES (5, 'five'), (199999, 'last')) AS v (id, name) ON n.id = v.id ORDER BY n.id;
