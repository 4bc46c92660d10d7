// What the sanitizers' run-time libraries ask every sanitized program of ours for, so that it behaves the same however
// it is started: by ctest, by mpirun, by hand. *SAN_OPTIONS of the environment still win. Suppressions are for code
// that is not ours, each with its reason; there is none for our own.
extern "C" {

#ifdef __SANITIZE_ADDRESS__
// Open MPI unloads its plugins before the leak check, whose suppressions would then find no names in their frames.
int dlclose(void*);
int dlclose(void*) { return 0; }
#endif

// A finding ends the program, with a stack; findings of the heap are ours to report, not a signal handler's.
const char* __asan_default_options();
const char* __asan_default_options() {
  return "strict_string_checks=1:check_initialization_order=1:strict_init_order=1:"
         "allow_user_segv_handler=1:allocator_may_return_null=1:exitcode=99";
}
const char* __ubsan_default_options();
const char* __ubsan_default_options() { return "print_stacktrace=1:halt_on_error=1"; }
const char* __lsan_default_options();
const char* __lsan_default_options() { return "print_suppressions=0"; }
const char* __tsan_default_options();
const char* __tsan_default_options() {
  // die_after_fork: checks that start programs do so from processes with threads. report_thread_leaks: a run that hangs
  // is ended by its monitor, whatever its other threads do.
  return "halt_on_error=1:second_deadlock_stack=1:die_after_fork=0:report_thread_leaks=0:allocator_may_return_null=1:"
         "exitcode=99:print_suppressions=0";
}

const char* __lsan_default_suppressions();
const char* __lsan_default_suppressions() {
  return
      // Open MPI keeps what MPI_Init allocates until the process ends.
      "leak:libmpi.so\n"
      "leak:libopen-pal.so\n"
      "leak:libopen-rte.so\n"
      "leak:libpmix.so\n"
      "leak:libevent\n"
      "leak:libhwloc.so\n"
      "leak:mca_\n"
      // Its texts: the unwinder stops in the C library, before their caller. Our own come from elsewhere.
      "leak:vasprintf\n";
}

const char* __tsan_default_suppressions();
const char* __tsan_default_suppressions() {
  return
      // libgomp's futexes are invisible to the sanitizer; oneDNN enters it with one thread a call.
      "race:libgomp.so\n"
      "called_from_lib:libgomp.so\n"
      // The first thread makes oneDNN's caches behind a guard whose fast path has no call to intercept.
      "race:libdnnl.so\n"
      // Ranks share its cache of primitives, filled by the first behind a lock of its own; the header, compiled here,
      // copies a description out of it.
      "race:dnnl::primitive_desc_base::query_md\n"
      // Open MPI takes the locks of a connection in both orders, from one thread, and its parts signal by polling.
      "deadlock:mca_btl_tcp.so\n"
      "race:mca_\n"
      "race:libopen-pal.so\n"
      "race:libpmix.so\n"
      "race:libevent\n";
}
}
