# What `cmake --install` gives. Everything is relative to the prefix, so the tree can be moved.
#   bin/ztrain   lib/libztrain.{a,so}   lib/pkgconfig/ztrain.pc   lib/lua/5.4/ztrain.so (LUA_CPATH, or prefix /usr/local)
#   include/ztrain/ztrain.h, with core/ and bindings/ headers below it: -Iinclude/ztrain finds all, as in the source tree
#   share/ztrain/lua (the library in Lua, to read and for language servers; the program carries its own), recipes
install(TARGETS ztrain RUNTIME)
install(TARGETS ztrain_static ztrain_shared ARCHIVE LIBRARY)
install(TARGETS ztrain_lua LIBRARY DESTINATION lib/lua/5.4)
if(ZT_MPI)
  install(TARGETS ztrain_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
set(include_root ${CMAKE_INSTALL_INCLUDEDIR}/ztrain)
install(FILES bindings/ztrain.h DESTINATION ${include_root})
install(FILES bindings/zt_lua.h bindings/zt_host.h bindings/zt_options.h DESTINATION ${include_root}/bindings)
install(DIRECTORY core DESTINATION ${include_root} FILES_MATCHING PATTERN "*.h")
install(DIRECTORY lua recipes DESTINATION ${CMAKE_INSTALL_DATADIR}/ztrain OPTIONAL)
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/ztrain.pc.in ztrain.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ztrain.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# A test installs into a folder of its own and uses what is there as a stranger would.
if(ZT_TESTS)
  add_test(NAME install COMMAND sh ${PROJECT_SOURCE_DIR}/tests/install.sh ${PROJECT_BINARY_DIR} ${CMAKE_C_COMPILER})
  set_tests_properties(install PROPERTIES TIMEOUT 300 LABELS full)
endif()
