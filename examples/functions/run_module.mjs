// Calls functions of Wasm modules for native_test.py, as a stand-in for the sandbox. Addresses are those of
// spec/function.md, but all memory belongs to the module, so loads outside the ranges do not trap.
//
// Request on standard input: u32 length of a JSON text, the text {module, entry, record, output, capacity, hop,
// ranges: [[address, bytes]...]}, then the bytes of all ranges. Reply: i64 result, u64 hop, `capacity` bytes of
// output. The result of a call that traps is -2^63.
import { readSync, writeSync, readFileSync } from "node:fs";

const WASM_PAGE = 65536;

function read(bytes) {
    const into = Buffer.alloc(bytes);
    for (let at = 0; at < bytes; ) {
        const count = readSync(0, into, at, bytes - at, null);
        if (count === 0) process.exit(0);
        at += count;
    }
    return into;
}

function write(bytes) {
    for (let at = 0; at < bytes.length; ) at += writeSync(1, bytes, at);
}

for (;;) {
    const request = JSON.parse(read(read(4).readUInt32LE()).toString());
    const ranges = request.ranges.map(([address, bytes]) => [address, read(bytes)]);
    const module = new WebAssembly.Module(readFileSync(request.module));
    const { exports } = new WebAssembly.Instance(module, {});
    const end = Math.max(...ranges.map(([address, bytes]) => address + bytes.length), request.output + request.capacity);
    exports.memory.grow(Math.ceil(end / WASM_PAGE) + 1 - exports.memory.buffer.byteLength / WASM_PAGE);
    const memory = Buffer.from(exports.memory.buffer);
    ranges.forEach(([address, bytes]) => bytes.copy(memory, address));
    const head = Buffer.alloc(16);
    try {
        head.writeBigInt64LE(exports[request.entry](request.record), 0);
    } catch (error) {
        if (!(error instanceof WebAssembly.RuntimeError)) throw error;
        head.writeBigInt64LE(-(2n ** 63n), 0);
    }
    // Growth of the memory replaces its buffer object.
    const after = Buffer.from(exports.memory.buffer);
    after.copy(head, 8, request.hop, request.hop + 8);
    write(head);
    write(after.subarray(request.output, request.output + request.capacity));
}
