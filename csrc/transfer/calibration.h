// The start-up calibration: measures what each method costs on this device, or reads what was
// measured before. For one thread.
#pragma once

#include <optional>
#include <string>

#include "transfer/transfer_engine.h"

namespace kvtier::transfer {

/// Gives the engine a model: the one kept in `options.calibration_path` when it is of this device,
/// driver and budget and undamaged, else a measured one, which is then kept there. A Status says
/// why the general figures had to stay, or why the file could not be written.
Status calibrate_engine(TransferEngine& engine, Device& device, Clock& clock,
                        const TransferOptions& options);

/// The file's text for a model, and back; nothing when the text is of another version, device,
/// budget, or damaged.
std::string write_calibration(const MethodModel& model, const std::string& identity,
                              const TransferOptions& options);
std::optional<MethodModel> read_calibration(const std::string& text, const std::string& identity,
                                            const TransferOptions& options);

}  // namespace kvtier::transfer
