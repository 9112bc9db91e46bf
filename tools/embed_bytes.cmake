# Writes the bytes of a file into a C++ file: INPUT, OUTPUT, HEADER that declares FUNCTION, which
# gives them as std::span<const unsigned char>.

file(READ "${INPUT}" digits HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1,\n" bytes "${digits}")
file(WRITE "${OUTPUT}" "// Generated from a built image. Constant.
#include \"${HEADER}\"

namespace {

alignas(64) constexpr unsigned char kBytes[] = {
${bytes}
};

}  // namespace

std::span<const unsigned char> ${FUNCTION}() { return kBytes; }
")
