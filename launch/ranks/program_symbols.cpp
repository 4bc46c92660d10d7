#include "launch/ranks/program_symbols.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// linker symbol: load address of this program
extern "C" const char __ehdr_start[] __attribute__((visibility("hidden")));

namespace gt {

ProgramSymbols::ProgramSymbols() {
  const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  struct stat s {};
  if (fstat(fd, &s) == 0) {
    void* base = mmap(nullptr, static_cast<size_t>(s.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
    if (base != MAP_FAILED) file_ = static_cast<const char*>(base), bytes_ = static_cast<size_t>(s.st_size);
  }
  close(fd);
}

ProgramSymbols::~ProgramSymbols() {
  if (file_ != nullptr) munmap(const_cast<char*>(file_), bytes_);
}

const char* ProgramSymbols::name_of(const void* address) const {
  const auto at = reinterpret_cast<uintptr_t>(address), base = reinterpret_cast<uintptr_t>(__ehdr_start);
  if (file_ == nullptr || at < base) return nullptr;
  const auto* head = reinterpret_cast<const Elf64_Ehdr*>(file_);
  const uintptr_t offset = head->e_type == ET_DYN ? at - base : at;
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(file_ + head->e_shoff);
  for (int k = 0; k < head->e_shnum; ++k) {
    if (sections[k].sh_type != SHT_SYMTAB) continue;
    const auto* symbol = reinterpret_cast<const Elf64_Sym*>(file_ + sections[k].sh_offset);
    const char* names = file_ + sections[sections[k].sh_link].sh_offset;
    for (size_t i = 0; i < sections[k].sh_size / sizeof(Elf64_Sym); ++i)
      if (ELF64_ST_TYPE(symbol[i].st_info) == STT_FUNC && symbol[i].st_value <= offset &&
          offset < symbol[i].st_value + symbol[i].st_size)
        return names + symbol[i].st_name;
  }
  return nullptr;
}

}  // namespace gt
