"""TPC-C, scaled (appendix B.1): its five transactions on PostgreSQL, in its own mix and in one that mostly reads."""

from __future__ import annotations

import sys
from pathlib import Path

from machine import Setting, quantiles
from servers import Server, behind, pgbench

SCHEMA = Path(__file__).with_name("tpcc") / "schema.sql"
WAREHOUSE_BYTES = 100 << 20
ITEMS, QUICK_ITEMS = 100_000, 10_000
CALLS = {
    "new_order": "new_order(:w, {items})",
    "payment": "payment(:w)",
    "order_status": "order_status(:w)",
    "delivery": "delivery(:w)",
    "stock_level": "stock_level(:w)",
}
# Percentages of the transactions: clause 5.2.3 of TPC-C, and those of the paper. In the paper nine of ten are of the
# kind that reads most.
MIXES = {
    "default": {"new_order": 45, "payment": 43, "order_status": 4, "delivery": 4, "stock_level": 4},
    "read-mostly": {"new_order": 5, "payment": 3, "order_status": 1, "delivery": 1, "stock_level": 90},
}
# Consistency conditions of clauses 3.3.2.1 to 3.3.2.4. None of these queries may return a row.
CONDITIONS = {
    "payments": "SELECT w_id FROM warehouse WHERE w_ytd <> (SELECT sum(d_ytd) FROM district WHERE d_w_id = w_id)",
    "order numbers": "SELECT d_id FROM district WHERE d_next_o_id - 1 <>"
    " (SELECT max(o_id) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id)",
    "order lines": "SELECT d_id FROM district WHERE"
    " (SELECT sum(o_ol_cnt) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id) <>"
    " (SELECT count(*) FROM order_line WHERE ol_w_id = d_w_id AND ol_d_id = d_id)",
}


class Tpcc:
    def __init__(self, folder: Path, size_bytes: int, items: int):
        self.size_bytes = size_bytes
        self._warehouses = max(size_bytes // WAREHOUSE_BYTES, 1)
        self._scripts = folder / "scripts"
        self._scripts.mkdir()
        for name, call in CALLS.items():
            statement = f"SELECT {call.format(items=items)};"
            (self._scripts / name).write_text(f"\\set w random(1, {self._warehouses})\n{statement}\n")
        self._server = Server(folder)
        self._kept = self._server.folder_for(folder / "kept")
        self._server.start(256 << 20)
        self._server.sql(f"CREATE TABLESPACE kept LOCATION '{self._kept}'")
        self._server.sql("ALTER DATABASE postgres SET default_tablespace = kept")
        schema = SCHEMA.read_text().replace(":W", str(self._warehouses)).replace(":I", str(items))
        self._server.sql(schema)
        self._server.sql("VACUUM ANALYZE")
        self._server.sql("CHECKPOINT")
        self._server.stop()

    def run(self, setting: Setting, mix: str) -> dict:
        with behind(self._server, self._kept, self.size_bytes, setting):
            # Reads the most frequently used table, which a cache would hold after a while.
            self._server.sql("SELECT count(*), sum(length(s_data)) FROM stock")
            self._server.sql("SELECT count(*), sum(length(ol_dist_info)) FROM order_line")
            self._server.sql("SELECT count(*), sum(length(c_data)) FROM customer")
            scripts = {self._scripts / name: weight for name, weight in MIXES[mix].items()}
            found = pgbench(self._server, scripts, setting.seconds, clients=4, seed=setting.seed)
            for name, condition in CONDITIONS.items():
                if wrong := self._server.sql(condition):
                    sys.exit(f"{setting.way}: {name} are inconsistent: {wrong}")
        return {"per_second": found["per_second"], **quantiles(found["times_us"])}

    def stop(self) -> None:
        self._server.stop()
