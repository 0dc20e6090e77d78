/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for NVIDIA's libnvidia-ml.so.1: the C interface that nvidia-ml-py calls, answered from a text file.
 *
 * The file that FAKE_NVML names is read again whenever it changes, so that a test can make calls fail, lose a
 * GPU or let counters run while a program uses the library. Its lines:
 *
 *   generation 1            another number: the driver was reset, all is uninitialized until nvmlInit
 *   clock 0                 seconds since counters started; "clock live NS": since that time of CLOCK_MONOTONIC
 *   driver.version 535.1    keys of the system, then
 *   gpu 0                   what follows is of this GPU; "mig 0": of this instance of it
 *   power.usage 251000      a value; "12 +5" is a counter: 12, and 5 more each second of the clock;
 *                           "!4" answers error 4. What has no line is not supported (error 3).
 *   call FUNCTION GPU error 15     calls of this function ("*": any) for this GPU (or "*") fail
 *   call FUNCTION GPU hang 5000    and take so many ms first
 *
 * \xNN in a value is a byte. -DOLD_DRIVER leaves out what drivers before 510 did not have.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
typedef int ret_t;
typedef unsigned int uint;
typedef unsigned long long ull;

enum {
  OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25
};

#define GPUS 32
#define MIGS 8
#define FIELDS 400
#define RULES 64
#define SETS 64

typedef struct { char *key, *value; } entry_t;
typedef struct {
  int present;
  entry_t *entries;
  int count, room;
  const char *field[FIELDS]; /* values of "field.N" and "field.N.0", which are the same */
} section_t;
typedef struct { char function[64]; int gpu, error, hang; } rule_t;
typedef struct { int gpu, mig; } handle_t;
typedef struct { int used; ull seen; ull gpus; } set_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *text, *path_read;
static struct stat stat_read;
static section_t whole, gpus[GPUS], migs[GPUS][MIGS];
static rule_t rules[RULES];
static int rule_count;
static handle_t handles[GPUS][MIGS + 1];
static set_t sets[SETS];
static int initialized;
static ull generation; /* that of the last first nvmlInit */

static int by_key(const void *a, const void *b) {
  return strcmp(((const entry_t *)a)->key, ((const entry_t *)b)->key);
}

static void clear(section_t *section) {
  section->present = section->count = 0;
  memset(section->field, 0, sizeof section->field);
}

static void add(section_t *section, char *key, char *value) {
  if (section->count == section->room) {
    section->room = section->room ? 2 * section->room : 64;
    section->entries = realloc(section->entries, section->room * sizeof(entry_t));
  }
  section->entries[section->count++] = (entry_t){key, value};
  int number, end = 0;
  if (sscanf(key, "field.%d%n", &number, &end) == 1 && (!key[end] || !strcmp(key + end, ".0")) && number >= 0 &&
      number < FIELDS)
    section->field[number] = value;
}

static void unescape(char *value) {
  char *to = value;
  for (char *from = value; *from;) {
    uint byte;
    if (from[0] == '\\' && from[1] == 'x' && sscanf(from + 2, "%2x", &byte) == 1) {
      *to++ = (char)byte;
      from += 4;
    } else
      *to++ = *from++;
  }
  *to = 0;
}

static void parse(void) {
  clear(&whole);
  rule_count = 0;
  for (int g = 0; g < GPUS; g++) {
    clear(&gpus[g]);
    for (int m = 0; m < MIGS; m++) clear(&migs[g][m]);
  }
  section_t *section = &whole;
  int gpu = 0, mig;
  char *rest, *line = strtok_r(text, "\n", &rest);
  for (; line; line = strtok_r(NULL, "\n", &rest)) {
    rule_t rule;
    char which[16], what[16];
    int number;
    if (!*line || *line == '#') continue;
    if (sscanf(line, "gpu %d", &number) == 1 && number >= 0 && number < GPUS) {
      gpu = number;
      section = &gpus[gpu];
      section->present = 1;
    } else if (sscanf(line, "mig %d", &mig) == 1 && mig >= 0 && mig < MIGS) {
      section = &migs[gpu][mig];
      section->present = 1;
    } else if (sscanf(line, "call %63s %15s %15s %d", rule.function, which, what, &number) == 4) {
      if (rule_count == RULES) continue;
      rule.gpu = *which == '*' ? -1 : atoi(which);
      rule.error = *what == 'e' ? number : 0;
      rule.hang = *what == 'h' ? number : 0;
      rules[rule_count++] = rule;
    } else {
      char *value = strchr(line, ' ');
      if (!value) continue;
      *value++ = 0;
      unescape(value);
      add(section, line, value);
    }
  }
  qsort(whole.entries, whole.count, sizeof(entry_t), by_key);
  for (int g = 0; g < GPUS; g++) {
    qsort(gpus[g].entries, gpus[g].count, sizeof(entry_t), by_key);
    for (int m = 0; m < MIGS; m++) qsort(migs[g][m].entries, migs[g][m].count, sizeof(entry_t), by_key);
  }
}

static void refresh(void) { /* with the lock held */
  const char *path = getenv("FAKE_NVML");
  struct stat now;
  if (!path || stat(path, &now)) return;
  if (path_read && !strcmp(path, path_read) && now.st_ino == stat_read.st_ino &&
      now.st_mtim.tv_sec == stat_read.st_mtim.tv_sec && now.st_mtim.tv_nsec == stat_read.st_mtim.tv_nsec &&
      now.st_size == stat_read.st_size)
    return;
  FILE *file = fopen(path, "r");
  if (!file) return;
  fstat(fileno(file), &now);
  free(text);
  text = malloc(now.st_size + 1);
  text[fread(text, 1, now.st_size, file)] = 0;
  fclose(file);
  free(path_read);
  path_read = strdup(path);
  stat_read = now;
  parse();
}

static const char *find(section_t *section, const char *key) {
  entry_t wanted = {(char *)key, NULL}, *found;
  if (!section->count) return NULL;
  found = bsearch(&wanted, section->entries, section->count, sizeof(entry_t), by_key);
  return found ? found->value : NULL;
}

static ull whole_number(const char *key) {
  const char *value = find(&whole, key);
  return value ? strtoull(value, NULL, 0) : 0;
}

static ull counted(const char *value) { /* "12 +5" at this time of the clock */
  char *end;
  ull base = *value == '-' ? (ull)strtoll(value, &end, 0) : strtoull(value, &end, 0), start;
  double rate = 0, seconds = 0;
  const char *clock = find(&whole, "clock");
  while (*end == ' ') end++;
  if (*end == '+') rate = strtod(end + 1, NULL);
  if (!rate || !clock) return base;
  if (sscanf(clock, "live %llu", &start) == 1) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    seconds = ((ull)now.tv_sec * 1000000000ull + now.tv_nsec - start) / 1e9;
  } else
    seconds = strtod(clock, NULL);
  return base + (ull)(rate * seconds);
}

static rule_t *rule_of(const char *function, int gpu) {
  for (int i = 0; i < rule_count; i++) {
    rule_t *rule = &rules[i];
    if ((rule->gpu == -1 || rule->gpu == gpu) && (*rule->function == '*' || !strcmp(rule->function, function)))
      return rule;
  }
  return NULL;
}

/* What comes before each call: with the lock held it returns OK, or the error with which the call ends. */
static ret_t enter(const char *function, int gpu) {
  pthread_mutex_lock(&lock);
  refresh();
  int slept = 0;
  for (;;) {
    rule_t *rule = rule_of(function, gpu);
    if (rule && rule->error) return rule->error;
    if (!rule || slept >= rule->hang) break;
    pthread_mutex_unlock(&lock); /* others go on */
    nanosleep(&(struct timespec){0, 10000000}, NULL);
    slept += 10;
    pthread_mutex_lock(&lock);
    refresh();
  }
  if (!strncmp(function, "nvmlInit", 8)) return OK;
  if (!initialized || generation != whole_number("generation")) return UNINITIALIZED;
  return OK;
}

static ret_t leave(ret_t result) {
  pthread_mutex_unlock(&lock);
  return result;
}

static int valid(handle_t *handle) {
  return handle >= &handles[0][0] && handle < &handles[0][0] + GPUS * (MIGS + 1) && handle->mig <= MIGS;
}

static ret_t enter_device(const char *function, handle_t *handle, section_t **section) {
  ret_t result = enter(function, valid(handle) ? handle->gpu : -2);
  if (result) return result;
  if (!valid(handle)) return INVALID_ARGUMENT;
  *section = handle->mig ? &migs[handle->gpu][handle->mig - 1] : &gpus[handle->gpu];
  return (*section)->present ? OK : GPU_IS_LOST;
}

static ret_t number_of(section_t *section, const char *key, ull *result) {
  const char *value = find(section, key);
  if (!value) return NOT_SUPPORTED;
  if (*value == '!') return atoi(value + 1);
  *result = counted(value);
  return OK;
}

static ret_t string_of(section_t *section, const char *key, char *buffer, uint length) {
  const char *value = find(section, key);
  if (!value) return NOT_SUPPORTED;
  if (*value == '!') return atoi(value + 1);
  if (strlen(value) + 1 > length) return INSUFFICIENT_SIZE;
  strcpy(buffer, value);
  return OK;
}

/* ---- the library ---- */

static ret_t init(const char *function) {
  ret_t result = enter(function, -2);
  if (!result && !path_read) result = DRIVER_NOT_LOADED;
  if (!result && !initialized++) {
    generation = whole_number("generation");
    for (int g = 0; g < GPUS; g++)
      for (int m = 0; m <= MIGS; m++) handles[g][m] = (handle_t){g, m};
  }
  return leave(result);
}
EXPORT ret_t nvmlInit_v2(void) { return init("nvmlInit_v2"); }
EXPORT ret_t nvmlInitWithFlags(uint flags) { return init("nvmlInitWithFlags"); }
EXPORT ret_t nvmlShutdown(void) {
  pthread_mutex_lock(&lock);
  if (!initialized) return leave(UNINITIALIZED);
  if (!--initialized) memset(sets, 0, sizeof sets);
  return leave(OK);
}

EXPORT const char *nvmlErrorString(ret_t result) {
  switch (result) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
  }
}

static ret_t system_string(const char *function, const char *key, char *buffer, uint length) {
  ret_t result = enter(function, -2);
  return leave(result ? result : string_of(&whole, key, buffer, length));
}
EXPORT ret_t nvmlSystemGetDriverVersion(char *b, uint n) {
  return system_string("nvmlSystemGetDriverVersion", "driver.version", b, n);
}
EXPORT ret_t nvmlSystemGetNVMLVersion(char *b, uint n) {
  return system_string("nvmlSystemGetNVMLVersion", "nvml.version", b, n);
}
static ret_t cuda_version(const char *function, int *version) {
  ull number = 0;
  ret_t result = enter(function, -2);
  if (!result) result = number_of(&whole, "cuda.version", &number);
  if (!result) *version = (int)number;
  return leave(result);
}
EXPORT ret_t nvmlSystemGetCudaDriverVersion(int *v) { return cuda_version("nvmlSystemGetCudaDriverVersion", v); }
EXPORT ret_t nvmlSystemGetCudaDriverVersion_v2(int *v) {
  return cuda_version("nvmlSystemGetCudaDriverVersion_v2", v);
}

/* ---- devices ---- */

EXPORT ret_t nvmlDeviceGetCount_v2(uint *count) {
  ret_t result = enter("nvmlDeviceGetCount_v2", -2);
  if (!result) {
    *count = 0;
    for (int g = 0; g < GPUS; g++) *count += gpus[g].present;
  }
  return leave(result);
}

EXPORT ret_t nvmlDeviceGetHandleByIndex_v2(uint index, handle_t **handle) {
  int gpu = -2;
  pthread_mutex_lock(&lock);
  refresh();
  for (int g = 0, seen = 0; g < GPUS; g++)
    if (gpus[g].present && (uint)seen++ == index) gpu = g;
  pthread_mutex_unlock(&lock);
  ret_t result = enter("nvmlDeviceGetHandleByIndex_v2", gpu);
  if (!result && gpu < 0) result = INVALID_ARGUMENT;
  if (!result) *handle = &handles[gpu][0];
  return leave(result);
}

static ret_t by_name(const char *function, const char *key, const char *name, handle_t **handle) {
  ret_t result = enter(function, -2);
  if (result) return leave(result);
  for (int g = 0; g < GPUS; g++) {
    const char *value = gpus[g].present ? find(&gpus[g], key) : NULL;
    if (value && !strcasecmp(value, name)) {
      *handle = &handles[g][0];
      return leave(OK);
    }
    for (int m = 0; m < MIGS; m++) {
      value = gpus[g].present && migs[g][m].present ? find(&migs[g][m], key) : NULL;
      if (value && !strcasecmp(value, name)) {
        *handle = &handles[g][m + 1];
        return leave(OK);
      }
    }
  }
  return leave(NOT_FOUND);
}
EXPORT ret_t nvmlDeviceGetHandleByUUID(const char *uuid, handle_t **handle) {
  return by_name("nvmlDeviceGetHandleByUUID", "uuid", uuid, handle);
}
EXPORT ret_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, handle_t **handle) {
  return by_name("nvmlDeviceGetHandleByPciBusId_v2", "pci.bus_id", id, handle);
}

#define STRING(name, key)                                        \
  EXPORT ret_t name(handle_t *device, char *buffer, uint size) { \
    section_t *section;                                          \
    ret_t result = enter_device(#name, device, &section);        \
    return leave(result ? result : string_of(section, key, buffer, size)); \
  }
#define NUMBER(name, type, key)                                  \
  EXPORT ret_t name(handle_t *device, type *value) {             \
    section_t *section;                                          \
    ull number = 0;                                              \
    ret_t result = enter_device(#name, device, &section);        \
    if (!result) result = number_of(section, key, &number);      \
    if (!result) *value = (type)number;                          \
    return leave(result);                                        \
  }
#define TWO(name, first, second)                                 \
  EXPORT ret_t name(handle_t *device, uint *a, uint *b) {        \
    section_t *section;                                          \
    ull one = 0, two = 0;                                        \
    ret_t result = enter_device(#name, device, &section);        \
    if (!result) result = number_of(section, first, &one);       \
    if (!result) result = number_of(section, second, &two);      \
    if (!result) *a = (uint)one, *b = (uint)two;                 \
    return leave(result);                                        \
  }
/* With an argument that chooses: key.N. */
#define CHOSEN(name, type, key)                                  \
  EXPORT ret_t name(handle_t *device, uint which, type *value) { \
    section_t *section;                                          \
    ull number = 0;                                              \
    char full[64];                                               \
    ret_t result = enter_device(#name, device, &section);        \
    snprintf(full, sizeof full, key ".%u", which);               \
    if (!result) result = number_of(section, full, &number);     \
    if (!result) *value = (type)number;                          \
    return leave(result);                                        \
  }

STRING(nvmlDeviceGetName, "name")
STRING(nvmlDeviceGetUUID, "uuid")
STRING(nvmlDeviceGetSerial, "serial")
STRING(nvmlDeviceGetVbiosVersion, "vbios.version")
NUMBER(nvmlDeviceGetMinorNumber, uint, "minor")
NUMBER(nvmlDeviceGetArchitecture, uint, "architecture")
NUMBER(nvmlDeviceGetBrand, uint, "brand")
NUMBER(nvmlDeviceGetVirtualizationMode, ull, "virtualization.mode")
NUMBER(nvmlDeviceGetPowerUsage, uint, "power.usage")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, uint, "power.limit")
NUMBER(nvmlDeviceGetPowerManagementLimit, uint, "power.limit")
NUMBER(nvmlDeviceGetTotalEnergyConsumption, ull, "energy")
NUMBER(nvmlDeviceGetFanSpeed, uint, "fan.speed.0")
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, ull, "throttle.reasons")
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, ull, "throttle.reasons.supported")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, uint, "pcie.generation")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, uint, "pcie.generation.max")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, uint, "pcie.width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, uint, "pcie.width.max")
NUMBER(nvmlDeviceGetPcieReplayCounter, uint, "pcie.replays")
NUMBER(nvmlDeviceGetPerformanceState, uint, "performance.state")
NUMBER(nvmlDeviceGetPersistenceMode, uint, "persistence.mode")
NUMBER(nvmlDeviceGetNumGpuCores, uint, "cores")
NUMBER(nvmlDeviceGetMemoryBusWidth, uint, "memory.bus_width")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, uint, "mig.max")
NUMBER(nvmlDeviceGetGpuInstanceId, uint, "mig.gpu_instance")
NUMBER(nvmlDeviceGetComputeInstanceId, uint, "mig.compute_instance")
NUMBER(nvmlDeviceGetSupportedEventTypes, ull, "events.supported")
TWO(nvmlDeviceGetEncoderUtilization, "utilization.encoder", "utilization.period")
TWO(nvmlDeviceGetDecoderUtilization, "utilization.decoder", "utilization.period")
TWO(nvmlDeviceGetMigMode, "mig.mode", "mig.mode.pending")
TWO(nvmlDeviceGetEccMode, "ecc.mode", "ecc.mode.pending")
TWO(nvmlDeviceGetCudaComputeCapability, "compute.major", "compute.minor")
CHOSEN(nvmlDeviceGetTemperature, uint, "temperature")
CHOSEN(nvmlDeviceGetTemperatureThreshold, uint, "temperature.limit")
CHOSEN(nvmlDeviceGetClockInfo, uint, "clock")
CHOSEN(nvmlDeviceGetMaxClockInfo, uint, "clock.max")
CHOSEN(nvmlDeviceGetPcieThroughput, uint, "pcie.throughput")
CHOSEN(nvmlDeviceGetNvLinkState, uint, "nvlink.state")
CHOSEN(nvmlDeviceGetNvLinkVersion, uint, "nvlink.version")
#ifndef OLD_DRIVER
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, ull, "throttle.reasons")
NUMBER(nvmlDeviceGetNumFans, uint, "fans")
NUMBER(nvmlDeviceGetPcieLinkMaxSpeed, uint, "pcie.speed.max")
NUMBER(nvmlDeviceGetPcieSpeed, uint, "pcie.speed")
CHOSEN(nvmlDeviceGetFanSpeed_v2, uint, "fan.speed")
#endif

typedef struct { uint gpu, memory; } utilization_t;
EXPORT ret_t nvmlDeviceGetUtilizationRates(handle_t *device, utilization_t *rates) {
  section_t *section;
  ull gpu = 0, memory = 0;
  ret_t result = enter_device("nvmlDeviceGetUtilizationRates", device, &section);
  if (!result) result = number_of(section, "utilization.gpu", &gpu);
  if (!result) result = number_of(section, "utilization.memory", &memory);
  if (!result) *rates = (utilization_t){(uint)gpu, (uint)memory};
  return leave(result);
}

EXPORT ret_t nvmlDeviceGetIndex(handle_t *device, uint *index) {
  section_t *section;
  ret_t result = enter_device("nvmlDeviceGetIndex", device, &section);
  if (!result) {
    *index = 0;
    for (int g = 0; g < device->gpu; g++) *index += gpus[g].present;
  }
  return leave(result);
}

typedef struct {
  char busIdLegacy[16];
  uint domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
} pci_t;
EXPORT ret_t nvmlDeviceGetPciInfo_v3(handle_t *device, pci_t *pci) {
  section_t *section;
  ret_t result = enter_device("nvmlDeviceGetPciInfo_v3", device, &section);
  memset(pci, 0, sizeof *pci);
  if (!result) result = string_of(section, "pci.bus_id", pci->busId, sizeof pci->busId);
  if (!result) {
    ull id = 0;
    sscanf(pci->busId, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xFFFF, pci->bus & 0xFF,
             pci->device & 0xFF);
    number_of(section, "pci.device_id", &id);
    pci->pciDeviceId = (uint)id;
  }
  return leave(result);
}

typedef struct { ull total, free, used; } memory_t;
typedef struct { uint version; ull total, reserved, free, used; } memory2_t;
static ret_t memory_of(const char *function, handle_t *device, memory2_t *memory) {
  section_t *section;
  ull total = 0, used = 0, reserved = 0;
  ret_t result = enter_device(function, device, &section);
  if (!result) result = number_of(section, "memory.total", &total);
  if (!result) result = number_of(section, "memory.used", &used);
  if (!result) number_of(section, "memory.reserved", &reserved);
  memory->total = total;
  memory->used = used;
  memory->reserved = reserved;
  memory->free = total - used - reserved;
  return leave(result);
}
EXPORT ret_t nvmlDeviceGetMemoryInfo(handle_t *device, memory_t *out) {
  memory2_t memory;
  ret_t result = memory_of("nvmlDeviceGetMemoryInfo", device, &memory);
  if (!result) *out = (memory_t){memory.total, memory.free, memory.used + memory.reserved};
  return result;
}
#ifndef OLD_DRIVER
EXPORT ret_t nvmlDeviceGetMemoryInfo_v2(handle_t *device, memory2_t *out) {
  memory2_t memory;
  if (out->version != (sizeof(memory2_t) | 2u << 24)) return VERSION_MISMATCH;
  ret_t result = memory_of("nvmlDeviceGetMemoryInfo_v2", device, &memory);
  memory.version = out->version;
  if (!result) *out = memory;
  return result;
}
#endif

EXPORT ret_t nvmlDeviceGetTotalEccErrors(handle_t *device, uint type, uint counter, ull *count) {
  section_t *section;
  char key[64];
  ret_t result = enter_device("nvmlDeviceGetTotalEccErrors", device, &section);
  snprintf(key, sizeof key, "ecc.%u.%u", type, counter);
  if (!result) result = number_of(section, key, count);
  return leave(result);
}

EXPORT ret_t nvmlDeviceGetNvLinkErrorCounter(handle_t *device, uint link, uint counter, ull *count) {
  section_t *section;
  char key[64];
  ret_t result = enter_device("nvmlDeviceGetNvLinkErrorCounter", device, &section);
  snprintf(key, sizeof key, "nvlink.errors.%u.%u", link, counter);
  if (!result) result = number_of(section, key, count);
  return leave(result);
}

typedef struct {
  uint fieldId, scopeId;
  long long timestamp, latencyUsec;
  uint valueType;
  ret_t nvmlReturn;
  union { double d; uint ui; unsigned long ul; ull ull_; long long sll; int si; unsigned short us; } value;
} field_t;

/* "3", "ui:3", "d:1.5", "sll:-4", "si:-4", "us:3", "!3"; of a counter "3 +5". */
static void field_of(section_t *section, field_t *field) {
  const char *text = NULL;
  char key[64];
  field->timestamp = field->latencyUsec = 0;
  if (field->scopeId == 0 && field->fieldId < FIELDS)
    text = section->field[field->fieldId];
  else {
    if (field->scopeId == 0xFFFFFFFFu)
      snprintf(key, sizeof key, "field.%u.all", field->fieldId);
    else
      snprintf(key, sizeof key, "field.%u.%u", field->fieldId, field->scopeId);
    text = find(section, key);
  }
  field->nvmlReturn = !text ? NOT_SUPPORTED : *text == '!' ? atoi(text + 1) : OK;
  if (field->nvmlReturn) return;
  const char *number = strchr(text, ':');
  number = number ? number + 1 : text;
  if (!strncmp(text, "d:", 2))
    field->valueType = 0, field->value.d = strtod(number, NULL);
  else if (!strncmp(text, "ui:", 3))
    field->valueType = 1, field->value.ui = (uint)counted(number);
  else if (!strncmp(text, "ul:", 3))
    field->valueType = 2, field->value.ul = counted(number);
  else if (!strncmp(text, "sll:", 4))
    field->valueType = 4, field->value.sll = (long long)counted(number);
  else if (!strncmp(text, "si:", 3))
    field->valueType = 5, field->value.si = (int)counted(number);
  else if (!strncmp(text, "us:", 3))
    field->valueType = 6, field->value.us = (unsigned short)counted(number);
  else if (!strncmp(text, "odd:", 4)) /* a type that nobody knows */
    field->valueType = 77, field->value.ull_ = counted(number);
  else
    field->valueType = 3, field->value.ull_ = counted(number);
}
EXPORT ret_t nvmlDeviceGetFieldValues(handle_t *device, int count, field_t *fields) {
  section_t *section;
  ret_t result = enter_device("nvmlDeviceGetFieldValues", device, &section);
  for (int i = 0; !result && i < count; i++) field_of(section, &fields[i]);
  return leave(result);
}

/* "pid:bytes,pid:bytes"; of a MIG GPU "pid:bytes:gpu instance:compute instance". */
typedef struct { uint pid; ull bytes; uint gpu_instance, compute_instance; } process_t;
static ret_t processes(const char *function, const char *key, handle_t *device, uint *count, process_t *list) {
  section_t *section;
  ret_t result = enter_device(function, device, &section);
  const char *text = result ? NULL : find(section, key);
  if (!result && !text) result = NOT_SUPPORTED;
  if (!result && *text == '!') result = atoi(text + 1);
  if (result) return leave(result);
  uint found = 0, room = list ? *count : 0;
  while (*text) {
    process_t process = {0, 0, 0xFFFFFFFFu, 0xFFFFFFFFu};
    int end = 0;
    if (sscanf(text, "%u:%llu%n", &process.pid, &process.bytes, &end) < 2) break;
    text += end;
    if (*text == ':' && sscanf(text, ":%u:%u%n", &process.gpu_instance, &process.compute_instance, &end) == 2)
      text += end;
    if (found < room) list[found] = process;
    found++;
    if (*text == ',') text++;
  }
  *count = found;
  return leave(found > room ? INSUFFICIENT_SIZE : OK);
}
#define PROCESSES(name, key)                                              \
  EXPORT ret_t name(handle_t *device, uint *count, process_t *list) {     \
    return processes(#name, key, device, count, list);                    \
  }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "processes.compute")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "processes.graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, "processes.mps")
#ifndef OLD_DRIVER
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "processes.compute")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "processes.graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "processes.mps")
#endif

/* ---- MIG ---- */

EXPORT ret_t nvmlDeviceGetMigDeviceHandleByIndex(handle_t *device, uint index, handle_t **mig) {
  section_t *section;
  ret_t result = enter_device("nvmlDeviceGetMigDeviceHandleByIndex", device, &section);
  if (!result && (device->mig || index >= MIGS)) result = INVALID_ARGUMENT;
  if (!result && !migs[device->gpu][index].present) result = NOT_FOUND;
  if (!result) *mig = &handles[device->gpu][index + 1];
  return leave(result);
}
EXPORT ret_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle_t *mig, handle_t **device) {
  section_t *section;
  ret_t result = enter_device("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", mig, &section);
  if (!result && !mig->mig) result = NOT_FOUND;
  if (!result) *device = &handles[mig->gpu][0];
  return leave(result);
}
EXPORT ret_t nvmlDeviceIsMigDeviceHandle(handle_t *device, uint *is_mig) {
  section_t *section;
  ret_t result = enter_device("nvmlDeviceIsMigDeviceHandle", device, &section);
  if (!result) *is_mig = device->mig != 0;
  return leave(result);
}
typedef struct {
  uint multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
  ull memory_mb;
} attributes_t;
EXPORT ret_t nvmlDeviceGetAttributes_v2(handle_t *device, attributes_t *attributes) {
  section_t *section;
  ull value = 0;
  ret_t result = enter_device("nvmlDeviceGetAttributes_v2", device, &section);
  memset(attributes, 0, sizeof *attributes);
  if (!result) result = number_of(section, "mig.multiprocessors", &value);
  attributes->multiprocessors = (uint)value;
  if (!result) result = number_of(section, "mig.slices", &value);
  attributes->gpu_slices = attributes->compute_slices = (uint)value;
  if (!result) result = number_of(section, "memory.total", &value);
  attributes->memory_mb = value >> 20;
  return leave(result);
}

/* ---- events: "events SEQUENCE:TYPE:DATA,..." of a GPU; a set gives those after its registration ---- */

typedef struct { handle_t *device; ull type, data; uint gpu_instance, compute_instance; } event_t;

static int next_event(int gpu, ull after, ull *sequence, event_t *event) {
  const char *text = find(&gpus[gpu], "events");
  for (; text && *text; text = strchr(text, ',') ? strchr(text, ',') + 1 : "")
    if (sscanf(text, "%llu:%llu:%llu", sequence, &event->type, &event->data) == 3 && *sequence > after) return 1;
  return 0;
}
static ull last_event(void) {
  ull last = 0, sequence;
  event_t event;
  for (int g = 0; g < GPUS; g++)
    for (ull after = 0; next_event(g, after, &sequence, &event); after = sequence)
      if (sequence > last) last = sequence;
  return last;
}

EXPORT ret_t nvmlEventSetCreate(set_t **set) {
  ret_t result = enter("nvmlEventSetCreate", -2);
  if (result) return leave(result);
  for (int i = 0; i < SETS; i++)
    if (!sets[i].used) {
      sets[i] = (set_t){1, last_event(), 0};
      *set = &sets[i];
      return leave(OK);
    }
  return leave(INSUFFICIENT_SIZE);
}
EXPORT ret_t nvmlEventSetFree(set_t *set) {
  ret_t result = enter("nvmlEventSetFree", -2);
  set->used = 0;
  return leave(result);
}
EXPORT ret_t nvmlDeviceRegisterEvents(handle_t *device, ull types, set_t *set) {
  section_t *section;
  ull supported = 0;
  ret_t result = enter_device("nvmlDeviceRegisterEvents", device, &section);
  if (!result) result = number_of(section, "events.supported", &supported);
  if (!result && (types & ~supported)) result = NOT_SUPPORTED;
  if (!result) set->gpus |= 1ull << device->gpu;
  return leave(result);
}
EXPORT ret_t nvmlEventSetWait_v2(set_t *set, event_t *event, uint ms) {
  for (uint waited = 0;; waited += 10) {
    ret_t result = enter("nvmlEventSetWait_v2", -2);
    if (!result && !set->used) result = INVALID_ARGUMENT;
    if (result) return leave(result);
    int best = -1;
    ull sequence, least = ~0ull;
    event_t candidate;
    for (int g = 0; g < GPUS; g++)
      if (gpus[g].present && set->gpus >> g & 1 && next_event(g, set->seen, &sequence, &candidate) && sequence < least)
        least = sequence, best = g;
    if (best >= 0) {
      next_event(best, set->seen, &sequence, event);
      event->device = &handles[best][0];
      event->gpu_instance = event->compute_instance = 0xFFFFFFFFu;
      set->seen = sequence;
      return leave(OK);
    }
    leave(OK);
    if (waited >= ms) return TIMEOUT;
    nanosleep(&(struct timespec){0, 10000000}, NULL);
  }
}
