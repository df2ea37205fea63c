# What `cmake --install` gives. Everything is relative to the prefix, so the tree can be moved.
#   bin/ztrain   lib/libztrain.{a,so}   lib/pkgconfig/ztrain.pc   lib/lua/5.4/ztrain.so (LUA_CPATH, or prefix /usr/local)
#   include/ztrain/ztrain.h, with the headers that it names below it: -Iinclude/ztrain serves both
#   share/ztrain/lua (the library in Lua, to read and for language servers; the program carries its own), recipes
install(TARGETS ztrain RUNTIME)
install(TARGETS ztrain_static ztrain_shared ARCHIVE LIBRARY)
if(TARGET ztrain_lua)
  install(TARGETS ztrain_lua LIBRARY DESTINATION lib/lua/5.4)
endif()
install(FILES core/ztrain.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ztrain)
install(DIRECTORY core/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ztrain/core
  FILES_MATCHING PATTERN "*.h" PATTERN ztrain.h EXCLUDE)
install(DIRECTORY lua recipes DESTINATION ${CMAKE_INSTALL_DATADIR}/ztrain OPTIONAL)
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/ztrain.pc.in ztrain.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ztrain.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
