/* A libnvidia-ml for tests: answers from a text file, so that a test changes them while a reader runs.
 *
 * $GPUWATCH_TEST_NVML_STATE, read again whenever it changes; a line is `key value`, or `gpu N key value` for one GPU:
 *   count 8                     GPUs that are counted
 *   init 9                      nvmlInit answers this code
 *   refuse:FUNCTION 3           this function answers this code
 *   error 15                    every call on the GPU answers this code (handles included)
 *   hang FUNCTION               this function does not return while the line stands
 *   garbage FUNCTION            this function succeeds, and what it gives is noise
 *   field:230 1                 a field value (of every scope), field:165.3 0 of scope 3;  fielderror:230 3  refuses one
 *   name, name_hex, uuid, bus_id, serial, vbios, inforom, utilization, memory_utilization, total, used, reserved,
 *   power_mw, limit_mw, default_mw, temperature, memory_temperature, margin, slowdown, sm_clock, memory_clock, mask,
 *   generation, generation_max, width, width_max, persistence, ecc, mig, mig_pending, mig_instances, banks_none,
 *   xid, xid_gpu, xid_serial (an event, told once for each serial)
 *   fabric_state, fabric_status, fabric_mask, fabric_summary, fabric_version (3, 2; 1: no V), links, pids (a,b,c)
 * $GPUWATCH_TEST_NVML_DELAYS: a table `function,microseconds`, what each call takes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define GPUS 64
#define LINES 1024

struct line { int gpu; char key[72]; char value[160]; };
struct delay { char function[64]; long us; };
static struct line lines[LINES];
static int line_count;
static struct timespec read_at;
static struct delay delays[512];
static int delay_count = -1;

static void load(void) {
  const char *path = getenv("GPUWATCH_TEST_NVML_STATE");
  struct stat now;
  if (!path) { line_count = 0; read_at.tv_sec = 0; return; }
  if (stat(path, &now) || (now.st_mtim.tv_sec == read_at.tv_sec && now.st_mtim.tv_nsec == read_at.tv_nsec)) return;
  FILE *file = fopen(path, "r");
  if (!file) return;
  char text[320];
  line_count = 0;
  while (fgets(text, sizeof text, file) && line_count < LINES) {
    struct line *l = &lines[line_count];
    l->gpu = -1;
    if (sscanf(text, "gpu %d %71s %159[^\n]", &l->gpu, l->key, l->value) == 3 || (l->gpu = -1, sscanf(text, "%71s %159[^\n]", l->key, l->value) == 2)) line_count++;
  }
  fclose(file);
  read_at = now.st_mtim;
}

static int garbled; /* the call under way gives noise */

static const char *words(int gpu, const char *key, const char *usual) {
  const char *found = usual;
  for (int i = 0; i < line_count; i++) {
    if (strcmp(lines[i].key, key)) continue;
    if (gpu >= 0 && lines[i].gpu == gpu) return lines[i].value;
    if (lines[i].gpu < 0) found = lines[i].value;
  }
  return found;
}

static const char *text_of(int gpu, const char *key, const char *usual) { return garbled ? "\xff\xfe\x01" : words(gpu, key, usual); }

static unsigned long long number(int gpu, const char *key, unsigned long long usual) {
  if (garbled) return 0xDEADBEEFDEADBEEFull;
  const char *found = words(gpu, key, NULL);
  return found ? strtoull(found, NULL, 0) : usual;
}

static nvmlReturn_t enter(const char *function, int gpu) {
  char key[96];
  if (delay_count < 0) {
    const char *path = getenv("GPUWATCH_TEST_NVML_DELAYS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char text[160];
    delay_count = 0;
    while (file && delay_count < 512 && fgets(text, sizeof text, file))
      if (sscanf(text, "%63[^,],%ld", delays[delay_count].function, &delays[delay_count].us) == 2) delay_count++;
    if (file) fclose(file);
  }
  for (int i = 0; i < delay_count; i++)
    if (!strcmp(delays[i].function, function)) usleep(delays[i].us);
  load(); /* once a call: a look at a file is not what a driver's call costs */
  garbled = 0;
  while (!strcmp(words(gpu, "hang", ""), function)) { usleep(20000); load(); }
  snprintf(key, sizeof key, "refuse:%s", function);
  nvmlReturn_t refused = (nvmlReturn_t)number(gpu, key, 0);
  if (refused) return refused;
  nvmlReturn_t error = gpu < 0 ? NVML_SUCCESS : (nvmlReturn_t)number(gpu, "error", 0);
  if (!error) garbled = !strcmp(words(gpu, "garbage", ""), function);
  return error;
}

#define GPU(device) ((int)(long)(device) - 1)
#define ENTER(device) do { nvmlReturn_t code = enter(__func__, GPU(device)); if (code) return code; } while (0)
#define ENTER_LIBRARY() do { nvmlReturn_t code = enter(__func__, -1); if (code) return code; } while (0)

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { ENTER_LIBRARY(); return (nvmlReturn_t)number(-1, "init", 0); }
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) { ENTER_LIBRARY(); return NVML_SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t result) { static char text[32]; snprintf(text, sizeof text, "code %d", result); return text; }
nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) { ENTER_LIBRARY(); snprintf(version, length, "%s", text_of(-1, "driver", "580.95.05")); return NVML_SUCCESS; }
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { ENTER_LIBRARY(); *version = (int)number(-1, "cuda", 13000); return NVML_SUCCESS; }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { ENTER_LIBRARY(); *version = (int)number(-1, "cuda", 13000); return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) { ENTER_LIBRARY(); *count = (unsigned)number(-1, "count", 8); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
  load();
  garbled = 0;
  if (index >= number(-1, "count", 8) || index >= GPUS) return NVML_ERROR_INVALID_ARGUMENT;
  nvmlReturn_t code = enter(__func__, (int)index);
  if (code) return code;
  *device = (nvmlDevice_t)(long)(index + 1);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) { ENTER(device); *index = (unsigned)GPU(device); return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
  ENTER(device);
  const char *hex = words(GPU(device), "name_hex", NULL);
  if (!hex) { snprintf(name, length, "%s", text_of(GPU(device), "name", "NVIDIA H100 80GB HBM3")); return NVML_SUCCESS; }
  unsigned int n = 0, byte;
  while (n + 1 < length && sscanf(hex + 2 * n, "%2x", &byte) == 1) name[n++] = (char)byte;
  name[n] = 0;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
  ENTER(device);
  char usual[48];
  snprintf(usual, sizeof usual, "GPU-00000000-0000-4000-8000-%012x", GPU(device));
  snprintf(uuid, length, "%s", text_of(GPU(device), "uuid", usual));
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
  ENTER(device);
  char usual[24];
  snprintf(usual, sizeof usual, "165%07d", GPU(device));
  snprintf(serial, length, "%s", text_of(GPU(device), "serial", usual));
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  ENTER(device);
  char usual[32];
  memset(pci, 0, sizeof *pci);
  snprintf(usual, sizeof usual, "00000000:%02X:00.0", 0x1b + 0x10 * GPU(device));
  snprintf(pci->busId, sizeof pci->busId, "%s", text_of(GPU(device), "bus_id", usual));
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
  ENTER(device);
  rates->gpu = (unsigned)number(GPU(device), "utilization", 90);
  rates->memory = (unsigned)number(GPU(device), "memory_utilization", 40);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  ENTER(device);
  memory->total = number(GPU(device), "total", 81559ull << 20);
  memory->used = number(GPU(device), "used", 70000ull << 20) + number(GPU(device), "reserved", 600ull << 20);
  memory->free = memory->total - memory->used;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
  ENTER(device);
  memory->total = number(GPU(device), "total", 81559ull << 20);
  memory->used = number(GPU(device), "used", 70000ull << 20);
  memory->reserved = number(GPU(device), "reserved", 600ull << 20);
  memory->free = memory->total - memory->used - memory->reserved;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius) {
  ENTER(device);
  if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  *celsius = (unsigned)number(GPU(device), "temperature", 60);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
  ENTER(device);
  if (temperature->sensorType != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  temperature->temperature = (int)number(GPU(device), "temperature", 60);
  return NVML_SUCCESS;
}

#define ONE_NUMBER(function, key, usual) \
  nvmlReturn_t function(nvmlDevice_t device, unsigned int *value) { ENTER(device); *value = (unsigned)number(GPU(device), key, usual); return NVML_SUCCESS; }
ONE_NUMBER(nvmlDeviceGetPowerUsage, "power_mw", 612340)
ONE_NUMBER(nvmlDeviceGetPowerManagementLimit, "limit_mw", 700000)
ONE_NUMBER(nvmlDeviceGetEnforcedPowerLimit, "limit_mw", 700000)
ONE_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "generation", 5)
ONE_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "width", 16)
ONE_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "width_max", 16)
ONE_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "generation_max", 5)
ONE_NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "default_mw", 700000)
ONE_NUMBER(nvmlDeviceGetMaxMigDeviceCount, "mig_most", 7)
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode) { ENTER(device); *mode = (nvmlEnableState_t)number(GPU(device), "persistence", 1); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *now, nvmlEnableState_t *then) {
  ENTER(device);
  *now = *then = (nvmlEnableState_t)number(GPU(device), "ecc", 1);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now, unsigned int *then) {
  ENTER(device);
  *now = (unsigned)number(GPU(device), "mig", 0);
  *then = (unsigned)number(GPU(device), "mig_pending", *now);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int place, nvmlDevice_t *instance) {
  ENTER(device);
  if (place >= number(GPU(device), "mig_instances", 0)) return NVML_ERROR_NOT_FOUND;
  *instance = (nvmlDevice_t)(long)(1000 + place);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *banks) {
  ENTER(device);
  banks->none = (unsigned)number(GPU(device), "banks_none", 0);
  banks->low = banks->partial = banks->high = (unsigned)number(GPU(device), "banks_few", 0);
  banks->max = (unsigned)number(GPU(device), "banks_all", 640);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t which, unsigned int *celsius) {
  ENTER(device);
  *celsius = (unsigned)number(GPU(device), "slowdown", which == NVML_TEMPERATURE_THRESHOLD_SLOWDOWN ? 92 : 95);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *margin) {
  ENTER(device);
  if (margin->version != nvmlMarginTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  margin->marginTemperature = (int)number(GPU(device), "margin", 32);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length) { ENTER(device); snprintf(version, length, "%s", text_of(GPU(device), "vbios", "96.00.61.00.01")); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetInforomImageVersion(nvmlDevice_t device, char *version, unsigned int length) { ENTER(device); snprintf(version, length, "%s", text_of(GPU(device), "inforom", "G520.0200.00.05")); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info) {
  ENTER(device);
  unsigned newest = (unsigned)number(-1, "fabric_version", 3);
  if (garbled) newest = 3;
  if (info->version != (newest >= 3 ? nvmlGpuFabricInfo_v3 : 0) && info->version != (newest >= 2 ? nvmlGpuFabricInfo_v2 : 0)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  memset(info->clusterUuid, 0x11, sizeof info->clusterUuid);
  info->status = (nvmlReturn_t)number(GPU(device), "fabric_status", 0);
  info->cliqueId = 1;
  info->state = (unsigned char)number(GPU(device), "fabric_state", 3);
  info->healthMask = (unsigned)number(GPU(device), "fabric_mask", 0x1AA); /* all four good, configuration right */
  if (info->version == nvmlGpuFabricInfo_v3) info->healthSummary = (unsigned char)number(GPU(device), "fabric_summary", 1);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info) {
  ENTER(device);
  memset(info->clusterUuid, 0x11, sizeof info->clusterUuid);
  info->status = (nvmlReturn_t)number(GPU(device), "fabric_status", 0);
  info->cliqueId = 1;
  info->state = (unsigned char)number(GPU(device), "fabric_state", 3);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
  ENTER(device);
  *mhz = (unsigned)(type == NVML_CLOCK_MEM ? number(GPU(device), "memory_clock", 2619) : number(GPU(device), "sm_clock", 1755));
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
  ENTER(device);
  *mhz = (unsigned)(type == NVML_CLOCK_MEM ? number(GPU(device), "memory_clock_max", 2619) : number(GPU(device), "sm_clock_max", 1980));
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *mask) { ENTER(device); *mask = number(GPU(device), "mask", 4); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *mask) { ENTER(device); *mask = number(GPU(device), "mask", 4); return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, unsigned long long *count) {
  ENTER(device);
  int corrected = type == NVML_MEMORY_ERROR_TYPE_CORRECTED;
  *count = number(GPU(device), counter == NVML_VOLATILE_ECC ? (corrected ? "field:3" : "field:4") : (corrected ? "field:5" : "field:6"), 0);
  return NVML_SUCCESS;
}
static unsigned long long usual_field(int gpu, unsigned id) {
  switch (id) {
    case NVML_FI_DEV_POWER_AVERAGE: case NVML_FI_DEV_POWER_INSTANT: return number(gpu, "power_mw", 612340);
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT: return number(gpu, "default_mw", 700000);
    case NVML_FI_DEV_POWER_CURRENT_LIMIT: case NVML_FI_DEV_POWER_REQUESTED_LIMIT: return number(gpu, "limit_mw", 700000);
    case NVML_FI_DEV_MEMORY_TEMP: return number(gpu, "memory_temperature", 58);
    case NVML_FI_DEV_NVLINK_LINK_COUNT: return number(gpu, "links", 18);
    case NVML_FI_DEV_NVLINK_GET_STATE: return 1;
    default: return 0;
  }
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
  ENTER(device);
  for (int i = 0; i < count; i++) {
    char key[32], scoped[32];
    snprintf(key, sizeof key, "fielderror:%u", values[i].fieldId);
    values[i].nvmlReturn = garbled ? NVML_SUCCESS : (nvmlReturn_t)number(GPU(device), key, 0);
    snprintf(key, sizeof key, "field:%u", values[i].fieldId);
    snprintf(scoped, sizeof scoped, "field:%u.%u", values[i].fieldId, values[i].scopeId);
    values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    values[i].value.ullVal = number(GPU(device), scoped, number(GPU(device), key, usual_field(GPU(device), values[i].fieldId)));
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) { ENTER_LIBRARY(); *set = (nvmlEventSet_t)1; return NVML_SUCCESS; }
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) { ENTER_LIBRARY(); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) { ENTER(device); return types == nvmlEventTypeXidCriticalError ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT; }
/* `xid 48` and `xid_gpu 3`: told once for each value of `xid_serial` */
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms) {
  static unsigned long long told;
  ENTER_LIBRARY();
  unsigned long long serial = number(-1, "xid_serial", 0);
  if (!serial || serial == told) { usleep(timeoutms * 1000); return NVML_ERROR_TIMEOUT; }
  told = garbled ? told : serial;
  memset(data, 0, sizeof *data);
  data->device = (nvmlDevice_t)(long)(number(-1, "xid_gpu", 0) + 1);
  data->eventType = nvmlEventTypeXidCriticalError;
  data->eventData = number(-1, "xid", 48);
  return NVML_SUCCESS;
}

static nvmlReturn_t processes(int gpu, unsigned int *room, nvmlProcessInfo_t *found) {
  const char *text = words(gpu, "pids", "");
  unsigned int count = 0, pids[64];
  if (garbled) text = "4294967295,3735928559,4000001";
  for (char *end; *text && count < 64; text = *end ? end + 1 : end) pids[count++] = (unsigned)strtoul(text, &end, 10);
  if (count > *room || (count && !found)) { *room = count; return NVML_ERROR_INSUFFICIENT_SIZE; }
  for (unsigned int i = 0; i < count; i++) {
    memset(&found[i], 0, sizeof found[i]);
    found[i].pid = pids[i];
    found[i].usedGpuMemory = 1ull << 30;
    found[i].gpuInstanceId = found[i].computeInstanceId = 0xFFFFFFFFu;
  }
  *room = count;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *room, nvmlProcessInfo_t *found) { ENTER(device); return processes(GPU(device), room, found); }
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *room, nvmlProcessInfo_v2_t *found) { ENTER(device); return processes(GPU(device), room, (nvmlProcessInfo_t *)found); }
