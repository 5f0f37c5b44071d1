# Writes OUTPUT, a header with the commit that SOURCE_DIR is at, "-dirty" behind it where tracked
# files differ; the commit is empty without git. Untouched when it would not change.
set(commit "")
find_package(Git QUIET)
if(Git_FOUND)
  execute_process(
    COMMAND "${GIT_EXECUTABLE}" describe --always --dirty --abbrev=12 --exclude *
    WORKING_DIRECTORY "${SOURCE_DIR}"
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT
  "#pragma once\ninline constexpr char kCommit[] = \"${commit}\";\n" @ONLY)
