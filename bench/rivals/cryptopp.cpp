// AES-128 in counter mode by Crypto++, the cipher of paper 003 (Farview): a rival of `farpool bench operators
// --cryptopp`, which compiles this file. For each line of its input, the program decrypts a buffer of MIB MiB in place
// and prints the throughput in GB/s.
#include <cryptopp/aes.h>
#include <cryptopp/modes.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int count, char **words) {
    const std::size_t mib = count == 2 ? std::strtoull(words[1], nullptr, 10) : 0;
    if (mib < 1 || mib > 65536) {
        std::fprintf(stderr, "usage: cryptopp MIB (1 to 65536)\n");
        return 2;
    }
    // The buffer is written once, so that no page fault is timed.
    std::vector<unsigned char> buffer(mib << 20, 1);
    const unsigned char key[16] = {7}, counter[16] = {0};
    for (int byte; (byte = std::getchar()) != EOF;) {
        if (byte != '\n') {
            continue;
        }
        CryptoPP::CTR_Mode<CryptoPP::AES>::Decryption cipher(key, sizeof key, counter);
        // Warm-up: this process has slept until now.
        cipher.ProcessData(buffer.data(), buffer.data(), buffer.size());
        const auto begun = std::chrono::steady_clock::now();
        cipher.ProcessData(buffer.data(), buffer.data(), buffer.size());
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;
        std::printf("%.3f\n", static_cast<double>(buffer.size()) / seconds.count() / 1e9);
        std::fflush(stdout);
    }
}
