# Writes OUT with the git hash of SOURCE, only if it changed. Runs at every build, so that --version never names an
# older commit, and only version.cpp is recompiled.
cmake_minimum_required(VERSION 3.25)
set(hash unknown)
find_program(git git)
if(git)
  execute_process(COMMAND ${git} --no-optional-locks -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                  OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(hash ${found})
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define GPT_GIT_HASH \"@hash@\"\n" @ONLY)
