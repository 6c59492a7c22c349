# Runs before each test: loads the extension, which is SQLite's default file system from then on.
#   testfixture prelude.tcl EXTENSION TEST ..
set extension [lindex $::argv 0]
set ::argv0 [lindex $::argv 1]
set ::argv [lrange $::argv 2 end]

sqlite3 loading :memory:
sqlite3_enable_load_extension loading 1
loading eval {SELECT load_extension($extension)}
loading close
unset extension

# Some tests shut SQLite down and initialise it again, which makes its own file system the default. The suite's commands
# vfs_unregister_all and vfs_reregister_all record the order of the file systems and restore it.
vfs_unregister_all
vfs_reregister_all
set ::is_shut_down 0
rename sqlite3_shutdown sqlite3_shutdown_alone
proc sqlite3_shutdown {} {
  set ::is_shut_down 1
  sqlite3_shutdown_alone
}
rename sqlite3_initialize sqlite3_initialize_alone
proc sqlite3_initialize {} {
  set code [sqlite3_initialize_alone]
  # The order is restored only after a shutdown, because one test counts the mutexes that initialising alone takes.
  if {$code eq "SQLITE_OK" && $::is_shut_down} {
    set ::is_shut_down 0
    vfs_reregister_all
  }
  return $code
}

# Tests of failing system calls only run if the default file system is called "unix". The extension
# passes those calls on.
rename test_syscall test_syscall_alone
proc test_syscall {args} {
  if {$args eq "defaultvfs"} {return unix}
  uplevel test_syscall_alone $args
}
source $::argv0
