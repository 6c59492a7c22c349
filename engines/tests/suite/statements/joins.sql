-- Joins: inner, outer, semi, anti, of one key and several, with NULL keys, and of tables with themselves.

SELECT count(*), sum(s.amount) FROM sales AS s JOIN customers AS c ON s.customer = c.id;
SELECT count(*), count(c.id), sum(s.amount) FROM sales AS s LEFT JOIN customers AS c ON s.customer = c.id;
SELECT count(*), count(s.id), count(c.id) FROM sales AS s RIGHT JOIN customers AS c ON s.customer = c.id;
SELECT count(*), count(s.id), count(c.id) FROM sales AS s FULL JOIN customers AS c ON s.customer = c.id;
SELECT count(*), count(s.id), count(p.id) FROM sales AS s FULL JOIN products AS p ON s.product = p.id;
SELECT p.id, p.name FROM products AS p LEFT JOIN sales AS s ON s.product = p.id WHERE s.id IS NULL ORDER BY p.id LIMIT 20;
SELECT s.id, s.customer FROM sales AS s LEFT JOIN customers AS c ON s.customer = c.id WHERE c.id IS NULL AND s.customer IS NOT NULL ORDER BY s.id LIMIT 10;
SELECT c.id, s.id, s.amount FROM customers AS c JOIN sales AS s ON s.customer = c.id WHERE c.id IN (3, 7, 499) ORDER BY c.id, s.id LIMIT 20;
SELECT c.name, p.name, s.quantity FROM sales AS s JOIN customers AS c ON s.customer = c.id JOIN products AS p ON s.product = p.id WHERE s.id < 12 ORDER BY s.id;
SELECT c.city, p.category, count(*), sum(s.amount) FROM sales AS s JOIN customers AS c ON s.customer = c.id JOIN products AS p ON s.product = p.id GROUP BY c.city, p.category;
SELECT c.segment, sum(s.quantity * p.price) FROM sales AS s JOIN customers AS c ON s.customer = c.id JOIN products AS p ON s.product = p.id WHERE p.category = 'toy' AND s.day < DATE '2023-07-01' GROUP BY c.segment;
SELECT c.city, count(DISTINCT s.product), min(s.day), max(s.amount) FROM customers AS c LEFT JOIN sales AS s ON s.customer = c.id GROUP BY c.city;

--! for kind: JOIN | LEFT JOIN | RIGHT JOIN | FULL JOIN
SELECT count(*), count(one.a), count(other.a), sum(one.b), sum(other.b) FROM logic AS one {kind} logic AS other ON one.a = other.b;
--! for kind: JOIN | LEFT JOIN | RIGHT JOIN | FULL JOIN
SELECT count(*), count(one.id), count(other.id) FROM logic AS one {kind} logic AS other ON one.a = other.a AND one.b = other.b;
--! for kind: JOIN | LEFT JOIN | RIGHT JOIN | FULL JOIN
SELECT count(*), count(one.id), count(other.id) FROM logic AS one {kind} logic AS other ON one.a = other.a AND one.id < other.id;
--! for kind: JOIN | LEFT JOIN | RIGHT JOIN | FULL JOIN
SELECT count(*), count(n.a), count(c.id) FROM nothing AS n {kind} customers AS c ON n.a = c.id;
--! for kind: JOIN | LEFT JOIN | RIGHT JOIN | FULL JOIN
SELECT count(*), count(s.a), sum(c.id) FROM single AS s {kind} customers AS c ON s.a = c.id;
--! for kind: JOIN | LEFT JOIN | RIGHT JOIN | FULL JOIN
SELECT count(*), sum(c.id), sum(p.id) FROM customers AS c {kind} products AS p ON c.id = p.id AND c.segment = 'retail' AND p.category = 'tool';
SELECT count(*) FROM logic AS one JOIN logic AS other ON one.a IS NOT DISTINCT FROM other.b;
SELECT count(*) FROM logic AS one JOIN logic AS other ON one.never = other.never;
SELECT count(*) FROM logic AS one JOIN logic AS other ON one.p = other.q AND one.a = other.a;

-- Joins of tables with themselves.
SELECT c.id, c.name, up.name FROM customers AS c JOIN customers AS up ON c.parent = up.id WHERE c.id < 12 ORDER BY c.id;
SELECT c.id, up.id, grand.id FROM customers AS c LEFT JOIN customers AS up ON c.parent = up.id LEFT JOIN customers AS grand ON up.parent = grand.id WHERE c.id BETWEEN 20 AND 40 ORDER BY c.id;
SELECT up.id, count(*) FROM customers AS c JOIN customers AS up ON c.parent = up.id GROUP BY up.id HAVING count(*) > 4 ORDER BY up.id LIMIT 10;
SELECT count(*) FROM sales AS one JOIN sales AS other ON one.customer = other.customer AND one.id < other.id;
SELECT count(*) FROM sales AS one JOIN sales AS other ON one.customer = other.customer AND one.product = other.product AND one.day = other.day AND one.id <> other.id;

-- Joins without an equality.
SELECT count(*) FROM customers CROSS JOIN products;
SELECT count(*), sum(a.id * b.id) FROM products AS a, products AS b WHERE a.id < 10 AND b.id < 10;
SELECT a.id, b.id FROM products AS a CROSS JOIN single AS s JOIN products AS b ON b.id = a.id + s.a ORDER BY a.id LIMIT 5;
SELECT count(*) FROM products AS a JOIN products AS b ON a.price < b.price;
SELECT count(*), count(b.id) FROM products AS a LEFT JOIN products AS b ON a.price * 2 < b.price AND a.category = b.category;
SELECT count(*) FROM sales AS s JOIN products AS p ON s.product = p.id AND s.amount > p.price * 40;
SELECT count(*) FROM products AS p JOIN customers AS c ON c.credit BETWEEN p.price AND p.price + 1;
SELECT count(*) FROM customers AS c, nothing;

-- USING and NATURAL.
SELECT count(*), sum(id) FROM customers JOIN products USING (id);
SELECT c.name, p.name FROM customers AS c JOIN products AS p USING (id) WHERE c.id < 4 ORDER BY c.id;
SELECT c.id, c.city, p.category FROM customers AS c FULL JOIN products AS p USING (id) WHERE c.id BETWEEN 58 AND 63 ORDER BY c.id;
SELECT count(*) FROM logic AS one JOIN logic AS other USING (a, b);
SELECT count(*) FROM single NATURAL JOIN nothing;

-- Semi-joins and anti-joins.
SELECT count(*), sum(id) FROM customers WHERE id IN (SELECT customer FROM sales);
SELECT count(*), sum(id) FROM customers WHERE id NOT IN (SELECT customer FROM sales WHERE customer IS NOT NULL);
SELECT count(*), sum(id) FROM customers AS c WHERE EXISTS (SELECT 1 FROM sales AS s WHERE s.customer = c.id);
SELECT count(*), sum(id) FROM customers AS c WHERE NOT EXISTS (SELECT 1 FROM sales AS s WHERE s.customer = c.id);
SELECT count(*) FROM customers AS c WHERE EXISTS (SELECT 1 FROM sales AS s WHERE s.customer = c.id AND s.amount > 2400) AND city = 'Oslo';

-- Joins of a small table with a table of four row groups.
SELECT count(*), sum(n.id) FROM numbers AS n JOIN products AS p ON n.k = p.id;
SELECT count(*), sum(n.id) FROM numbers AS n JOIN products AS p ON n.k = p.id WHERE p.category = 'food';
SELECT p.category, count(*), sum(n.small), min(n.id) FROM numbers AS n JOIN products AS p ON n.k = p.id GROUP BY p.category;
SELECT count(*), sum(p.price) FROM numbers AS n JOIN products AS p ON n.k = p.id AND n.g < 5 AND n.flag;
SELECT count(*), count(p.id) FROM numbers AS n LEFT JOIN products AS p ON n.k = p.id;
SELECT count(*), count(n.id) FROM numbers AS n RIGHT JOIN products AS p ON n.k = p.id AND n.id < 500;
SELECT count(*), sum(n.k) FROM numbers AS n WHERE n.k IN (SELECT id FROM products WHERE category = 'book');
SELECT count(*), sum(n.k) FROM numbers AS n WHERE n.k NOT IN (SELECT id FROM products);
SELECT n.id, n.k, p.name FROM numbers AS n JOIN products AS p ON n.k = p.id WHERE n.id > 199700 ORDER BY n.id LIMIT 8;
SELECT n.id, p.name FROM numbers AS n JOIN products AS p ON n.k = p.id WHERE p.price > 80 ORDER BY n.f DESC NULLS LAST, n.id LIMIT 5;
SELECT count(*), min(n.id) FROM numbers AS n JOIN single AS s ON n.k = s.a;
SELECT count(*) FROM numbers AS n JOIN nothing AS e ON n.k = e.a;
SELECT count(*), count(e.a) FROM numbers AS n LEFT JOIN nothing AS e ON n.k = e.a;
SELECT count(*), sum(n.k) FROM numbers AS n JOIN (SELECT DISTINCT city FROM customers WHERE city IS NOT NULL) AS c ON n.tag < c.city;
SELECT count(*), sum(n.k) FROM numbers AS n JOIN (SELECT 'red' AS t UNION ALL SELECT 'blue') AS c ON n.tag = c.t;
SELECT n.tag, c.rank, count(*) FROM numbers AS n JOIN (VALUES ('red', 1), ('green', 2), ('plaid', 3)) AS c (tag, rank) ON n.tag = c.tag GROUP BY n.tag, c.rank;
SELECT count(*), sum(n.id) FROM numbers AS n JOIN (SELECT id AS key FROM numbers WHERE k = 17 AND g = 3) AS m ON n.id = m.key;
SELECT count(*) FROM numbers AS n JOIN days AS d ON n.day = d.e WHERE n.k < 100;
SELECT count(*), sum(one.k) FROM numbers AS one JOIN numbers AS other ON one.id = other.id + 65536 WHERE other.k < 20;
SELECT count(*), sum(one.k - other.k) FROM numbers AS one JOIN numbers AS other ON one.id = other.id;
SELECT count(*) FROM numbers AS one JOIN numbers AS other ON one.k = other.k AND one.g = other.g WHERE one.id < 2000 AND other.id > 198000;
SELECT c.segment, n.flag, count(*) FROM customers AS c JOIN numbers AS n ON c.id = n.k WHERE c.credit > 900 GROUP BY c.segment, n.flag;
SELECT count(*), sum(n.small) FROM numbers AS n JOIN products AS p ON n.k = p.id JOIN customers AS c ON n.k = c.id WHERE c.city = 'Lima' AND p.category = 'toy';
SELECT count(*) FROM numbers AS n JOIN products AS p ON n.price = p.price;
SELECT count(*) FROM numbers AS n JOIN logic AS l ON n.g = l.a AND n.flag = l.p;
--! error
SELECT * FROM customers AS c JOIN products AS p ON c.id = p.nothing_like_that;
--! error
SELECT count(*) FROM customers JOIN products ON name = name;
